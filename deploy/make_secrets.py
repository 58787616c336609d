#!/usr/bin/env python3
"""Makes the secrets of docker-compose.yml, once: a file in deploy/secrets/ for each purpose. Standard library only.

    python3 deploy/make_secrets.py [FOLDER]

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
OPERATOR = "operator"
"""For a person at the broker's management page."""
VHOST = "placet"
DATABASE = "placet"

WORK = r"placet\.work|placet\.events|placet\.dead"
READS = {
    "dispatcher": r"placet\.(dispatcher|ingress\.submissions)",
    "resume": r"placet\.resume",
    "planner": r"placet\.planner",
    "tool-executor": r"placet\.tool-executor(\..+)?",
    "approval": r"placet\.(approval|ingress\.decisions)",
}
ANSWERS = {"dispatcher", "resume", "approval"}
"""Who answers askers directly, which goes by the default exchange."""

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
    """What a service may do at the broker: it declares nothing, and writes to exchanges by their exact names."""
    if service == "gateway":
        own = r"placet\.watch\..+"
        return {"configure": f"^({own})$", "write": rf"^(placet\.work|{own})$", "read": rf"^(placet\.events|{own})$"}
    write = f"{WORK}|amq\\.default" if service in ANSWERS else WORK
    return {"configure": "^$", "write": f"^({write})$", "read": f"^({READS[service]})$"}


def definitions(passwords: dict[str, str]) -> str:
    """Users, rights and the virtual host of the broker."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    granted = {service: rights(service) for service in SERVICES} | {DEPLOYER: everything, OPERATOR: everything}
    document = {
        "vhosts": [{"name": VHOST, "default_queue_type": "quorum"}],
        "users": [
            {
                "name": user,
                "password_hash": rabbitmq_hash(password),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"] if user == OPERATOR else [],
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


def make(folder: Folder) -> None:
    """Everything that is missing."""
    owner = folder.password("postgres_owner_password")
    folder.derive("database_url_migrate", f"postgresql://{OWNER}:{owner}@postgres:5432/{DATABASE}\n")
    roles = {service: folder.password(f"postgres_password_{service}") for service in SERVICES}
    folder.derive("role_passwords", "".join(f"{service}={password}\n" for service, password in roles.items()))
    for service, password in roles.items():
        folder.derive(f"database_url_{service}", f"postgresql://{role(service)}:{password}@postgres:5432/{DATABASE}\n")
    users = {user: folder.password(f"rabbitmq_password_{user}") for user in (*SERVICES, DEPLOYER, OPERATOR)}
    folder.derive("rabbitmq_definitions", definitions(users))
    for user in (*SERVICES, DEPLOYER):
        name = "migrate" if user == DEPLOYER else user
        folder.derive(f"amqp_url_{name}", f"amqp://{user}:{users[user]}@rabbitmq:5672/{VHOST}\n")
    redis = folder.password("redis_password")
    folder.derive("redis_acl", redis_acl(redis))
    folder.derive("redis_url_approval", f"redis://approval:{redis}@redis:6379/0\n")
    folder.password("token")
    for name, text in TEMPLATES.items():
        folder.keep(name, text)


def main(arguments: list[str]) -> int:
    """Make them, and say so."""
    path = Path(arguments[0]) if arguments else Path(__file__).parent / "secrets"
    folder = Folder(path)
    make(folder)
    print(f"secrets: {len(folder.made)} made in {path}" if folder.made else f"secrets: all there in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
