"""Decides how a file stands in the input of a tool: by its content, so that an approval is for exactly these bytes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from placet import limits

_UNFIT = re.compile(r"[\x00-\x1f\x7f\\]")


def _relative(path: str) -> str:
    """A path that leads nowhere but down."""
    if _UNFIT.search(path) or any(part in ("", ".", "..") for part in path.split("/")):
        raise PydanticCustomError("path", "is no path below the executor's folder, such as dist/app.tar")
    return path


class FileRef(BaseModel):
    """A file as a tool's parameter: `async def deploy(ctx: ToolContext, image: FileRef)`.

    Digest and size are part of the input, hence of the hash that is approved. The model gets them from a tool that
    reads (`ctx.refer(path)`); right before the effect the executor copies the file, and refuses the call (STALE) unless
    the copy has that very content. The tool gets the copy (`ctx.open(image)`, `ctx.path_of(image)`), never the
    original, so that it does not matter who changes that in between.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, Field(min_length=1, max_length=limits.FILE_PATH_CHARS_MAX), AfterValidator(_relative)]
    """Below the folder of files of the executor (PLACET_TOOL_FILES), with `/` between its parts. No part is a link."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, le=limits.FILE_BYTES_MAX)]
    """In bytes."""
