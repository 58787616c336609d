// What the pages do by themselves: keys, live updates, countdowns. Without it everything can still be read and decided.
// Nothing here builds markup; what is put into a page was made by the server.
"use strict";

if (window.trustedTypes) {
  // htmx puts in what this server has sent. Nobody makes scripts of text.
  window.trustedTypes.createPolicy("default", { createHTML: (text) => text });
}

const QUIET_MS = 600; // after a page appears, or changes under the hand, no key decides
const SOON_MS = 5 * 60 * 1000;
const POLL_MS = 15000;
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = (selector, root = document) => root.querySelector(selector);
let quietUntil = 0;
let skew = 0;

const hush = () => { quietUntil = performance.now() + QUIET_MS; };
const isQuiet = () => performance.now() < quietUntil;

// ── times ────────────────────────────────────────────────────────────────────────────

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

function span(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  for (const [size, unit] of UNITS) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

function left(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  for (let n = 0; n < UNITS.length - 1; n += 1) {
    const [[size, unit], [nextSize, nextUnit]] = [UNITS[n], UNITS[n + 1]];
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ${Math.floor((seconds % size) / nextSize)} ${nextUnit}`;
  }
  return span(ms);
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  const now = Date.now() + skew;
  for (const element of all("time[data-until]")) {
    const more = Number(element.dataset.until) - now;
    element.classList.toggle("soon", more < SOON_MS);
    say(element, more > 0 ? `${left(more)} left` : "time is over");
    if (more <= 0 && !element.dataset.over) {
      element.dataset.over = "1";
      const isOpenRequest = element.closest("#standing") !== null;
      if (isOpenRequest) lock("Its time is over: nothing can be decided any more.");
      refresh();
    }
  }
  for (const element of all("time[data-since]")) {
    const past = now - Number(element.dataset.since);
    say(element, past < 5000 ? "just now" : `${span(past)} ago`);
  }
}

// ── live ─────────────────────────────────────────────────────────────────────────────

function refresh() {
  if (!window.htmx) return;
  for (const element of all("[data-live]")) window.htmx.trigger(element, "changed");
}

let stream = null;

function listen() {
  const where = document.body.dataset.events;
  if (!where || stream || document.hidden) return;
  stream = new EventSource(where);
  stream.addEventListener("changed", () => { line(""); refresh(); });
  stream.addEventListener("error", () => {
    line("not live: reconnecting");
    if (stream && stream.readyState === EventSource.CLOSED) stream = null;
  });
}

function line(text) {
  const element = one("#line");
  if (element) say(element, text);
}

// A tab that nobody sees holds no connection: a browser has few of them for one server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    if (stream) stream.close();
    stream = null;
  } else {
    listen();
    refresh();
  }
});

function lock(why) {
  const form = one("#decide");
  if (!form || form.dataset.locked) return;
  form.dataset.locked = "1";
  for (const button of all("[data-decide]")) button.disabled = true;
  const hint = one("#hint");
  if (hint) say(hint, why);
}

function unlock() {
  const form = one("#decide");
  if (!form || form.dataset.locked) return;
  const folded = all("[data-folded]").length;
  const note = one("#locked");
  if (note) note.hidden = folded === 0;
  for (const button of all("[data-decide]")) {
    if (!button.hasAttribute("data-never")) button.disabled = folded > 0;
  }
}

document.addEventListener("htmx:afterSwap", (event) => {
  const opened = all("[data-opened]").filter((element) => event.detail.elt && event.detail.elt.contains(element));
  if (opened.length) hush();
  unlock();
  if (one("#standing[data-closed]")) lock("It is decided: nothing is sent any more. What you have written stays here.");
  const queue = one("#queue");
  if (queue) {
    const badge = one("#badge");
    if (badge && badge.textContent !== queue.dataset.count) {
      badge.textContent = queue.dataset.count;
      badge.setAttribute("aria-label", `${queue.dataset.count} waiting`);
      document.title = document.title.replace(/^(\(\d+\) )?/, Number(queue.dataset.count) ? `(${queue.dataset.count}) ` : "");
    }
    keepPlace();
    selectAgain();
    countSelected();
  }
  tick();
});

// ── the queue ────────────────────────────────────────────────────────────────────────

let place = 0;
const links = () => all("[data-row] .headline, [data-row-link]");

function keepPlace() {
  const found = links();
  const at = found.indexOf(document.activeElement);
  if (at >= 0) place = at;
  else if (document.activeElement === document.body && found.length && keepPlace.moved) {
    found[Math.min(place, found.length - 1)].focus({ preventScroll: true }); // the row under the hand is gone
  }
}

function move(step) {
  const found = links();
  if (!found.length) return;
  const at = found.indexOf(document.activeElement);
  place = at < 0 ? (keepPlace.moved ? Math.min(place, found.length - 1) : 0) : Math.max(0, Math.min(found.length - 1, at + step));
  keepPlace.moved = true;
  found[place].focus();
}

function select() {
  const row = document.activeElement && document.activeElement.closest("[data-row]");
  const box = row && one("input[type=checkbox]", row);
  if (!box) return;
  box.checked = !box.checked;
  noteSelected();
  countSelected();
}

// What is selected outlives the list, which may come anew while somebody selects.
const selected = new Set();

function noteSelected() {
  for (const box of all("#queue input[name=select]")) {
    if (box.checked) selected.add(box.value);
    else selected.delete(box.value);
  }
}

function selectAgain() {
  const there = all("#queue input[name=select]");
  for (const box of there) box.checked = selected.has(box.value);
  const values = new Set(there.map((box) => box.value));
  for (const value of selected) if (!values.has(value)) selected.delete(value);
}

function countSelected() {
  const count = all("#queue input:checked").length;
  const shown = one("[data-selected]");
  if (shown) say(shown, count ? `(${count})` : "");
  const button = one("#decide-selected");
  if (button) button.disabled = count === 0;
}

document.addEventListener("change", (event) => {
  if (event.target.matches("#queue input")) {
    noteSelected();
    countSelected();
  }
  if (event.target.matches("[data-apply]")) event.target.form.requestSubmit();
});

// ── deciding ─────────────────────────────────────────────────────────────────────────

let intent = null;

function prepare(button) {
  const hint = one("#hint");
  if (button.disabled) {
    const why = one("#locked:not([hidden])") ? "Open what is folded first: O" : "This cannot be said here.";
    if (hint) say(hint, why);
    return;
  }
  intent = button;
  const confirm = one("#confirm");
  if (button.value === "approve" && confirm && confirm.value.trim() === "") {
    confirm.focus();
    if (hint) say(hint, "Type what is asked for, then Enter.");
  } else if (["reject", "request_changes"].includes(button.value)) {
    one("#reason").focus();
    if (hint) say(hint, `Say why, then Ctrl+Enter: ${button.textContent.trim().replace(/\s+\S$/, "").toLowerCase()}.`);
  } else {
    button.focus();
    if (hint) say(hint, "Enter decides.");
  }
}

function send(button) {
  if (button && !button.disabled && !isQuiet()) button.form.requestSubmit(button);
}

let isSending = false;
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button || !button.matches("[data-decide]")) return;
  if (isQuiet() || isSending) {
    event.preventDefault(); // typed for what stood here a moment ago
    return;
  }
  isSending = true;
});
window.addEventListener("pageshow", () => { isSending = false; });

const isTyping = (target) => target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.altKey || event.metaKey) return;
  const target = event.target;
  if (event.key === "Enter" && event.ctrlKey && target.id === "reason") {
    event.preventDefault();
    send(intent || one("[data-decide][value=reject]"));
    return;
  }
  if (event.ctrlKey) return;
  if (isTyping(target)) {
    if (event.key === "Escape") target.blur();
    if (event.key === "Enter" && target.id === "confirm") {
      event.preventDefault();
      send(one("[data-decide][value=approve]"));
    }
    return;
  }
  const key = event.key.toLowerCase();
  if (key === "/") {
    event.preventDefault();
    const search = one("#q");
    if (search) search.focus();
    else window.location.assign("/inbox");
    return;
  }
  if (key === "?") return window.location.assign("/inbox/help");
  if (key === "u" && one(".crumb a")) return one(".crumb a").click();
  if (key === "o" && one("[data-folded]")) return openAll();
  const wanted = one(`[data-key="${CSS.escape(key)}"]`);
  if (wanted && /^[a-z]$/.test(key)) {
    event.preventDefault();
    if (!wanted.matches("[data-decide]")) return wanted.click();
    return isQuiet() ? undefined : prepare(wanted);
  }
  if (key === "j") return move(1);
  if (key === "k") return move(-1);
  if (key === "x") return select();
  if (key === "b" && one("#decide-selected")) return one("#decide-selected").click();
  return undefined;
});

function openAll() {
  for (const link of all("[data-folded] .open")) link.click();
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-open-all]") && window.htmx) {
    event.preventDefault();
    openAll();
  }
  const copy = event.target.closest("[data-copy]");
  if (copy && navigator.clipboard) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => line("copied"), () => line("could not be copied"));
  }
});

// ── at first ─────────────────────────────────────────────────────────────────────────

document.addEventListener("DOMContentLoaded", () => {
  skew = Number(document.body.dataset.now) - Date.now();
  if (one("[data-decide]")) hush();
  const atOnce = one("form[data-at-once]");
  if (atOnce) atOnce.requestSubmit();
  noteSelected();
  countSelected();
  unlock();
  tick();
  setInterval(tick, 1000);
  setInterval(() => { if (!stream && !document.hidden) { listen(); refresh(); } }, POLL_MS);
  const error = one("#error");
  if (error) {
    error.tabIndex = -1;
    error.focus();
  }
  setTimeout(listen, 0);
});
