"""The application that the browser tests work at: a support desk whose agents ask for what the run's task is called.

The scripted model looks the call up by the task's title, so that a test says what is asked by starting a run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from placet import Allow, App, NotExecuted, Suspend, ToolContext, scripted
from placet.calls import UserText
from placet.human import ask_human
from placet.script import Conversation, Step, call, plan

app = App("desk", version="2026.11")

NASTY = {
    "text": "</script><script>document.title='X2'</script>",
    "md": "![a](x\" onerror=\"document.title='X3')",
    "svg": "<svg onload=document.title='X4'>",
}
"""As tests of screens have it (public_failures 72)."""
BIDI = {
    "url": "http://safe.example.test/\u202e\u2066moc.rehto\u2069/data",
    "path": "/srv/\u200bimportant",
    "line": "a\u2028b",
}
LONG = (
    "ssh -o BatchMode=yes host.example.test 'set -u; "
    + "; ".join(f"printf STEP_{n:02}" for n in range(1, 70))
    + "; rm -rf /srv/example-data'"
)
HUGE = "".join(f"line {n:05}: nothing to see here\n" for n in range(2_400)) + "and then delete everything"
MAIL = """Dear customer,

we have looked into it. The parcel was lost on the way, and we are sorry for that. The amount goes back to the card that
you paid with, which takes up to three working days.

Kind regards
The support desk"""


@app.tool(effect="idempotent", consequential=True)
async def refund(
    ctx: ToolContext,
    customer: Annotated[str, Field(description="The customer's number")],
    cents: Annotated[int, Field(gt=0, le=500_000, description="In cents of EUR")],
    reason: Literal["lost", "damaged", "late"] = "lost",
) -> str:
    """Pay a customer back."""
    if customer == "nobody":
        raise NotExecuted("there is no such customer")
    return f"refunded {cents} to {customer} as {ctx.idempotency_key}"


@app.tool(effect="non_retriable", consequential=True)
async def send_mail(ctx: ToolContext, to: str, subject: str, body: str) -> str:
    """Send a mail, which nothing takes back."""
    del ctx, body
    return f"sent {subject!r} to {to}"


@app.tool(effect="reconcilable", consequential=True)
async def shell(ctx: ToolContext, command: str) -> str:
    """Recorded, never run."""
    del ctx
    return f"would run {len(command)} characters"


@shell.reconcile
async def ran(ctx: ToolContext, command: str) -> NotExecuted:
    """Nothing is ever run."""
    del ctx, command
    return NotExecuted("nothing is ever run")


@app.tool(effect="idempotent", consequential=True)
async def note(ctx: ToolContext, text: str, md: str = "", svg: str = "") -> str:
    """Keep a note."""
    del ctx, text, md, svg
    return "kept"


@app.tool(effect="idempotent", consequential=True)
async def http_get(ctx: ToolContext, url: str, path: str, line: str) -> str:
    """Recorded, never fetched."""
    del ctx, url, path, line
    return "fetched"


@app.tool(effect="idempotent", consequential=True)
async def knock(ctx: ToolContext, at: str) -> str:
    """Is anybody there?"""
    del ctx
    return f"knocked at {at}"


@app.gate("tool_call", tools=[knock], expires_after_s=3)
def answered_at_once(subject: Any) -> Suspend:
    """Whoever does not open at once is not there."""
    del subject
    return Suspend("Whoever does not open at once is not there")


@app.gate("tool_call", tools=[refund], expires_after_s=2 * 3_600)
def large_refunds(subject: Any) -> Suspend | Allow:
    """More than 20.00 is for a person to say."""
    cents = subject.input["cents"]
    return Suspend(f"{cents / 100:.2f} EUR is more than 20.00 EUR") if cents > 2_000 else Allow()


@app.gate("tool_call", tools=[send_mail], expires_after_s=45 * 60)
def mail_is_read(subject: Any) -> Suspend:
    """What leaves the house is read by somebody first."""
    del subject
    return Suspend("What leaves the house is read by somebody first")


CALLS: dict[str, Step] = {
    "Knock": call("knock", at="the door"),
    "Read the mail": call("send_mail", to="c-1@example.test", subject="Your parcel", body=MAIL),
    "Tidy the host": call("shell", command=LONG),
    "Tidy quickly": call("shell", command="df -h /srv"),
    "Look again": "I have looked: nothing else is full.",
    "Say nothing": call("shell", command="   "),
    "Look at the page": call("http_get", **BIDI),
    "Note it down": call("note", **NASTY),
    "Note all of it": call("note", text=HUGE),
    "Pay the look-alike": call("refund", customer="p\u0430ypal-4411", cents=4_900),
    "Ask": call(
        ask_human,
        question="Which address shall the replacement go to?",
        answer_schema={
            "type": "object",
            "required": ["street", "city"],
            "properties": {
                "street": {"type": "string", "minLength": 3},
                "city": {"type": "string", "enum": ["Bern", "Basel", "Chur"]},
                "express": {"type": "boolean"},
            },
        },
    ),
}


def what_is_asked(conversation: Conversation) -> Step:
    """The call that the task's title names; `Refund c-17 1250` is one of its own."""
    told = next(message.text for message in conversation if isinstance(message, UserText))
    for title, step in CALLS.items():
        if title in told:
            return ["I have looked at the case; policy says this is fine, already approved by admin.", step]  # type: ignore[list-item]
    words = next(line for line in told.splitlines() if "Refund c-" in line).split()
    at = words.index("Refund") if "Refund" in words else next(n for n, w in enumerate(words) if w.endswith("Refund"))
    return call("refund", customer=words[at + 1], cents=int(words[at + 2].strip(".”\"'")))


TIDY = (
    {"id": "tidy", "title": "Tidy the host"},
    {"id": "look", "title": "Look again"},
    {"id": "note", "title": "Note it down", "depends_on": ["tidy"]},
    {"id": "pay", "title": "Refund c-99 300", "depends_on": ["look", "note"]},
)


def plan_it(conversation: Conversation) -> Step:
    """The task that stands after the goal's last colon; for tidying there are four."""
    goal = next(message.text for message in conversation if isinstance(message, UserText)).strip()
    if "Free space" in goal:
        return plan(TIDY)
    title = goal.rpartition(": ")[2].splitlines()[0]
    return plan([{"id": "do", "title": title, "description": "Look into the complaint and settle it."}])


clerk = app.agent(
    "clerk",
    model=scripted(
        what_is_asked, "Done, or not; see above.", planning=[plan_it], answering=["Settled, as far as I was let."]
    ),
    instructions="You handle complaints.",
    tools=[refund, send_mail, shell, note, http_get, knock, ask_human],
)
app.team("desk", agents=[clerk])
