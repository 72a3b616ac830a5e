"""The same words for asyncio: `async with`, `async for`, and a handle that can be awaited.

async with kept.aio.Consumer("localhost:9091", "payments", group="mailer", guarantee=kept.AtLeastOnce()) as consumer:
    async for record in consumer:
        await send_mail(record)
"""

from kept.aio.consuming import Consumer
from kept.aio.outbox import Outbox
from kept.aio.producing import Delivery, Producer

__all__ = ["Consumer", "Delivery", "Outbox", "Producer"]
