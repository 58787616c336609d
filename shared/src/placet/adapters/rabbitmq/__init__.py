"""RabbitMQ: queues between the services, doors for outsiders, answers, hints and dead letters. On aio-pika."""

from __future__ import annotations

from placet.adapters.rabbitmq.answering import RabbitReplies
from placet.adapters.rabbitmq.asking import Asker
from placet.adapters.rabbitmq.collecting import Collector
from placet.adapters.rabbitmq.declaring import declare, verify
from placet.adapters.rabbitmq.door import RabbitDoor
from placet.adapters.rabbitmq.inbox import Opener, RabbitInbox
from placet.adapters.rabbitmq.outlet import RabbitOutlet
from placet.adapters.rabbitmq.stopping import RabbitStops
from placet.adapters.rabbitmq.submitting import check_properties, open_submission, return_address
from placet.adapters.rabbitmq.wire import Incoming

__all__ = [
    "Asker",
    "Collector",
    "Incoming",
    "Opener",
    "RabbitDoor",
    "RabbitInbox",
    "RabbitOutlet",
    "RabbitReplies",
    "RabbitStops",
    "check_properties",
    "declare",
    "open_submission",
    "return_address",
    "verify",
]
