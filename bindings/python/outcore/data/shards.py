"""Files of consecutive samples: tar shards, TFRecord, safetensors. The native reader parses them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from .. import _native
from .._run import Bar
from .._session import Session, default_session
from ..errors import ArgumentError
from .fields import fields_of
from .writer import Writer

FORMS = ("tar", "tfrecord", "safetensors")

COMPRESSED = r"(\.(gz|bz2|xz|zst|zstd))?"
"""What a name may end in besides. Whether a file is compressed, its bytes tell."""
NAMES = {
    "tar": rf"\.(tar{COMPRESSED}|tgz|tbz2?|txz|tzst)$",
    "tfrecord": rf"\.tfrecords?(-\d+-of-\d+)?{COMPRESSED}$",
    "safetensors": rf"\.safetensors{COMPRESSED}$",
}

AT_ONCE = 1 << 20
"""Samples that are taken by one native call at most; it ends after a moment in any case."""


@dataclass(frozen=True)
class Shards:
    """Files of one form, whose samples come one after another."""

    form: str
    files: list[str]

    def into(
        self,
        writer: Writer,
        *,
        told: bool,
        names: bool,
        in_place: bool,
        label: str,
        session: Session | None,
        progress: bool | None,
    ) -> None:
        """Puts samples behind those that the writer has, with the fields that it has if those were `told`, else their own."""
        inner = (session or default_session())._inner
        fields = list(writer.fields or ()) if told else None
        shards = _native.Shards(inner, self.form, self.files, in_place, fields)
        if writer.fields is None:
            writer._set_fields(fields_of(shards.fields()))
        with Bar(label, progress) as bar:
            while writer._writer.take(shards, names, AT_ONCE):
                bar.update(shards.fraction)


def form_by_name(path: str) -> str | None:
    return next((form for form, name in NAMES.items() if re.search(name, path)), None)


def form_of(path: str) -> str | None:
    """The form of a file: by its first bytes if these are certain, else by its name."""
    return (_native.shard_form(path) if os.path.isfile(path) else None) or form_by_name(path)


def note(writer: Writer, source: str, **options: object) -> None:
    """Has the writer remember what it is made of, and refuses to go on with something else."""
    about = json.dumps({"source": source, **options})
    if len(writer) and writer._writer.noted() != about:
        raise ArgumentError(
            f"{writer.path}: what is there was packed from another source, or it has changed since, or in another order; "
            "begin anew without resume"
        )
    writer._writer.note(about)
