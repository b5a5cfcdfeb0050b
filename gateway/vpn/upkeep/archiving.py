"""
The archiver of a Message VPN: a process of its own that copies the log to its archive, as ``rewind archive --follow``
does, and reports how far it is.

It is a process and not a thread for two reasons. It works as much as publishers do, and would take the interpreter from
them. And it reads the store's file through another copy of SQLite, which must not share a process with the gateway's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Final

from gateway.core.errors import Refused
from gateway.logging import log_keys
from gateway.vpn.role import ArchivedSource
from gateway.vpn.state import VpnService, VpnState
from gateway.vpn.upkeep.alarms import ArchiveWatch
from gateway.vpn.upkeep.trimming import Trimmer

PROGRAM: Final = "gateway.cli.archiving"
FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0
"""The longest pause between the end of an archiver and the start of the next, if they end again and again."""

REASON_CHARACTERS: Final = 500


class Archiving(VpnService):
    """
    Takes the reports of archivers, and runs an archiver if the settings say so.

    Args:
        source: None if no archiver is to run here.
    """

    def __init__(
        self, state: VpnState, watch: ArchiveWatch, trimmer: Trimmer, source: ArchivedSource | None
    ) -> None:
        super().__init__(state)
        self.problem: str | None = None
        """Why the archiver ended, until the next one archives something."""
        self._watch = watch
        self._trimmer = trimmer
        self._source = source

    async def archived(self, last_id: int, generation: int) -> int:
        """
        Note durably that an archive holds the log up to an id: that much may be trimmed from now on.

        Returns:
            Up to which id the log is known to be archived then.

        Raises:
            Refused: LOG_MODIFIED, PRECONDITION_FAILED, as ``Trimming.report_archived``; INTERNAL, the store could not
                write.
        """
        trimming = self._broker.trimming
        effect = trimming.report_archived(last_id, generation)
        if effect is not None:
            await self._committer.committed([effect])
            trimming.archive_saved(effect)
            self._trimmer.run()
            self._watch.is_due.set()
        return self._broker.log.archived_id

    def start(self) -> None:
        """Run the archiver, again and again, until this is closed."""
        if self._source is not None:
            self._begin(self._run_on)

    async def _run_on(self) -> None:
        assert self._source is not None
        pause = FIRST_SECONDS
        while True:
            try:
                if await self._run(self._source):
                    pause = FIRST_SECONDS
            except Exception as error:
                # The machine starts no process, or a library has written what is no report: the next one may succeed.
                self.problem = f"{type(error).__name__}: {error}"
            self._runtime.log.warning("archiver_ended", **{log_keys.REASON: self.problem})
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_SECONDS)

    async def _run(self, source: ArchivedSource) -> bool:
        """Run an archiver until it ends, which it should not do; whether it has archived anything."""
        environment = {} if source.password is None else {"PGPASSWORD": source.password}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            PROGRAM,
            source.to,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        said = asyncio.create_task(_last_words(process.stderr))
        try:
            # The archiver ends when this end of its stdin pipe is closed, for whatever reason.
            asked = {"log": dict(source.log), "age_seconds": source.age_seconds}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            has_archived = False
            async for line in process.stdout:
                last_id, generation = json.loads(line)
                # A store that cannot write is an alarm, and the next report covers this one.
                with suppress(Refused):
                    await self.archived(last_id, generation)
                has_archived, self.problem = True, None
            self.problem = await said or f"it ended with status {await process.wait()}"
            return has_archived
        finally:
            said.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()


async def _last_words(stream: asyncio.StreamReader) -> str:
    """The last line of its output; nothing before that is kept."""
    last = b""
    while chunk := await stream.read(1 << 12):
        last = (last + chunk)[-(1 << 12) :]
    lines = last.decode(errors="replace").strip().splitlines()
    return lines[-1][:REASON_CHARACTERS] if lines else ""
