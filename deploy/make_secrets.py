#!/usr/bin/env python3
"""Makes the secrets of docker-compose.yml, once: a file in deploy/secrets/ for each purpose. Standard library only.

    python3 deploy/make_secrets.py [--digest] [FOLDER]

`--digest` makes nothing and prints one word for all that containers read only at their start: where it has changed,
they have to be made anew, which Compose does not find out by itself.

Passwords that exist are left as they are, and what follows from them is brought up to date: it can be run at any time.
They are random and of one service each, so that one of them opens nothing but what that service may do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import sys
from pathlib import Path

SERVICES = ("dispatcher", "resume", "planner", "tool-executor", "approval", "gateway")
OWNER = "placet_owner"
"""Owns the schema; used by the one-off `migrate` alone."""
DEPLOYER = "deployer"
"""Declares queues; likewise."""
REVIEWER = "reviewer"
"""For people who publish signed decisions: writes to one exchange, nothing else. Who decides, the signature says."""
OPERATOR = "operator"
"""For a person at the broker's management page."""
VHOST = "placet"
DATABASE = "placet"

WORK = r"placet\.work|placet\.events|placet\.dead"
READS = {
    "dispatcher": r"placet\.(dispatcher|ingress\.submissions|dead)",
    "resume": r"placet\.resume",
    "planner": r"placet\.planner",
    "tool-executor": r"placet\.tool-executor(\..+)?",
    "approval": r"placet\.(approval|ingress\.decisions)",
}
TAGS = {OPERATOR: ["administrator"], "gateway": ["impersonator"]}
"""The gateway speaks for people anyway. So tagged, it may publish again what an outsider had, in their name."""
ANSWERS = {"dispatcher", "resume", "approval"}
"""Who answers askers directly, which goes by the default exchange."""
CALLERS = {"planner", "tool-executor"}
"""Who makes calls to the world, and tells the others of its kind which are no longer wanted."""

REGISTRY = "decision_keys/registry.json"
"""In a folder of its own, which is mounted as a whole: of a single mounted file a container never sees another one."""
GATEWAY_LABEL = "the gateway of docker-compose.yml"

TEMPLATES = {
    "models.env": "# Keys of models, such as OPENAI_API_KEY=… and ANTHROPIC_API_KEY=… Only planners see them.\n",
    "tools.env": "# What tools need to do their work. Only tool executors see it.\n",
}


class Folder:
    """The folder of the secrets: nobody else may enter it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        self.made: list[str] = []

    def keep(self, name: str, text: str) -> str:
        """The content of a file; written with `text` if it is not there."""
        path = self._path / name
        if not path.exists():
            path.parent.mkdir(mode=0o755, exist_ok=True)
            self._write(path, text)
        return path.read_text(encoding="utf-8")

    def derive(self, name: str, text: str) -> None:
        """A file that says what follows from others: written whenever it says something else."""
        path = self._path / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Whole or not at all. All who get as far as the file may read it: in a container it is another user who does,
        and the folder is closed.
        """
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        draft.chmod(0o444)
        draft.replace(path)
        self.made.append(path.name)

    def password(self, name: str) -> str:
        """A random password that is kept."""
        return self.keep(name, secrets.token_urlsafe(32)).strip()


def role(service: str) -> str:
    """The database's role of a service."""
    return f"placet_{service.replace('-', '_')}"


def rabbitmq_hash(password: str) -> str:
    """As the broker keeps it: a salt, and the SHA-256 of salt and password. The same for the same password."""
    salt = hashlib.sha256(f"salt of {password}".encode()).digest()[:4]
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def rights(service: str) -> dict[str, str]:
    """What a service may do at the broker: it writes to exchanges by their exact names, and declares nothing but the
    queue on which it hears what is only said once."""
    if service == "gateway":
        own = r"placet\.watch\..+"
        write = rf"placet\.(work|submissions|decisions)|{own}"
        return {"configure": f"^({own})$", "write": f"^({write})$", "read": rf"^(placet\.(events|partials)|{own})$"}
    write = f"{WORK}|amq\\.default" if service in ANSWERS else WORK
    if service not in CALLERS:
        return {"configure": "^$", "write": f"^({write})$", "read": f"^({READS[service]})$"}
    own = r"placet\.stops\..+"
    stops = rf"placet\.stops|{own}"
    if service == "planner":
        write += r"|placet\.partials"
    return {"configure": f"^({own})$", "write": f"^({write}|{stops})$", "read": f"^({READS[service]}|{stops})$"}


def definitions(passwords: dict[str, str]) -> str:
    """Users, rights and the virtual host of the broker."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    granted = {service: rights(service) for service in SERVICES} | {DEPLOYER: everything, OPERATOR: everything}
    granted[REVIEWER] = {"configure": "^$", "write": r"^placet\.decisions$", "read": "^$"}
    document = {
        "vhosts": [{"name": VHOST, "default_queue_type": "quorum"}],
        "users": [
            {
                "name": user,
                "password_hash": rabbitmq_hash(password),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": TAGS.get(user, []),
            }
            for user, password in passwords.items()
        ],
        "permissions": [{"user": user, "vhost": VHOST, **what} for user, what in granted.items()],
    }
    return json.dumps(document, indent=2) + "\n"


def redis_acl(password: str) -> str:
    """The approval service races; everybody else may ask whether the server lives."""
    hashed = hashlib.sha256(password.encode()).hexdigest()
    may = "~{*}:* resetchannels -@all +@connection +@transaction +get +getrange +set +del +info"
    return f"user default on nopass resetkeys resetchannels -@all +ping\nuser approval on #{hashed} {may}\n"


def make_keys(folder: Folder) -> None:
    """The gateway's key, and in the registry of the approval service the entry of its public half.

    What others have entered there stays, also that a key is revoked.
    """
    seed = base64.b64encode(secrets.token_bytes(32)).decode()
    kept = json.loads(folder.keep("gateway_key", json.dumps({"version": 1, "private_key": seed}) + "\n"))
    public = ed25519_public(base64.b64decode(kept["private_key"]))
    entry = {
        "keyid": f"key_{hashlib.sha256(public).hexdigest()[:32]}",
        "public_key": base64.b64encode(public).decode(),
        "kind": "gateway",
        "tenants": [tenant()],
        "label": GATEWAY_LABEL,
    }
    registry = json.loads(folder.keep(REGISTRY, json.dumps({"version": 1, "keys": []})))
    known = next((key for key in registry["keys"] if key["keyid"] == entry["keyid"]), None)
    if known is None:
        # An earlier key of this gateway was taken out of use: what it signs must not count any more.
        registry["keys"] = [entry, *(key for key in registry["keys"] if key.get("label") != GATEWAY_LABEL)]
    elif tenant() not in known["tenants"]:
        known["tenants"].append(tenant())
    else:
        return
    folder.derive(REGISTRY, json.dumps(registry, indent=2) + "\n")


def tenant() -> str:
    """Whose data the gateway shows: PLACET_TENANT in the environment or in `.env`, as docker compose reads it."""
    named = os.environ.get("PLACET_TENANT", "").strip()
    env = Path(__file__).parent.parent / ".env"
    for line in env.read_text(encoding="utf-8").splitlines() if not named and env.exists() else ():
        name, _, value = line.partition("=")
        named = value.strip().strip("\"'") if name.strip() == "PLACET_TENANT" else named
    return named or "default"


def ed25519_public(seed: bytes) -> bytes:
    """The public half of a private key (RFC 8032, 5.1.5). For keys that are made here, once, and nowhere else."""
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    prime = 2**255 - 19
    d = -121665 * pow(121666, -1, prime) % prime

    def add(p: tuple[int, int, int, int], q: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        a, b = (p[1] - p[0]) * (q[1] - q[0]) % prime, (p[1] + p[0]) * (q[1] + q[0]) % prime
        c, e = 2 * p[3] * q[3] * d % prime, 2 * p[2] * q[2] % prime
        f, g, h, k = b - a, e - c, e + c, b + a
        return f * g % prime, h * k % prime, g * h % prime, f * k % prime

    y = 4 * pow(5, -1, prime) % prime
    x = 15112221349535400772501151409588531511454012693041857206046113283949847762202
    point, total = (x, y, 1, x * y % prime), (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point = add(point, point)
        scalar >>= 1
    inverse = pow(total[2], -1, prime)
    x, y = total[0] * inverse % prime, total[1] * inverse % prime
    return (y | (x & 1) << 255).to_bytes(32, "little")


def digest_of(path: Path) -> str:
    """Another word for other secrets. Not of the registry of keys, which is looked at for every decision."""
    names = sorted(file.name for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    contents = [(name, hashlib.sha256((path / name).read_bytes()).hexdigest()) for name in names]
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]


def make(folder: Folder) -> None:
    """Everything that is missing."""
    owner = folder.password("postgres_owner_password")
    folder.derive("database_url_migrate", f"postgresql://{OWNER}:{owner}@postgres:5432/{DATABASE}\n")
    roles = {service: folder.password(f"postgres_password_{service}") for service in SERVICES}
    folder.derive("role_passwords", "".join(f"{service}={password}\n" for service, password in roles.items()))
    for service, password in roles.items():
        folder.derive(f"database_url_{service}", f"postgresql://{role(service)}:{password}@postgres:5432/{DATABASE}\n")
    users = {user: folder.password(f"rabbitmq_password_{user}") for user in (*SERVICES, DEPLOYER, OPERATOR, REVIEWER)}
    folder.derive("rabbitmq_definitions", definitions(users))
    for user in (*SERVICES, DEPLOYER, REVIEWER):
        name = "migrate" if user == DEPLOYER else user
        folder.derive(f"amqp_url_{name}", f"amqp://{user}:{users[user]}@rabbitmq:5672/{VHOST}\n")
    redis = folder.password("redis_password")
    folder.derive("redis_acl", redis_acl(redis))
    folder.derive("redis_url_approval", f"redis://approval:{redis}@redis:6379/0\n")
    folder.password("token")
    make_keys(folder)
    for name, text in TEMPLATES.items():
        folder.keep(name, text)


def main(arguments: list[str]) -> int:
    """Make them, and say so."""
    named = [argument for argument in arguments if argument != "--digest"]
    path = Path(named[0]) if named else Path(__file__).parent / "secrets"
    if "--digest" in arguments:
        print(digest_of(path))
        return 0
    folder = Folder(path)
    make(folder)
    print(f"secrets: {len(folder.made)} made in {path}" if folder.made else f"secrets: all there in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
