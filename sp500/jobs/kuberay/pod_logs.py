"""Lines of many pods in the order of their times, each once, however often a log is read again.

Logs are read, not streamed: a look a second, from the second of the last line on, of which nothing known is given
again. A stream breaks (proxies, idle time-outs, a restarted API server) and has to be taken up by this same reading,
with a thread for each pod besides. The prices: a line comes up to a second late, and each look repeats a second.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import NamedTuple

from sp500.jobs.executor import Line
from sp500.jobs.state import Role

STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?")


# What the kubelet sends in place of the log of a container that is gone.
NO_LOG = "unable to retrieve container logs"


class Moment(NamedTuple):
    """A time as the node wrote it, to the nanosecond."""

    second: datetime
    nanoseconds: str


BEGINNING = Moment(datetime.min.replace(tzinfo=UTC), "")


class PodLog:
    """One container's log, and how far it was given.

    `tail` is how many of the lines that are there at the first reading count; None for all.
    """

    def __init__(self, role: Role, pod: str, container: str, tail: int | None) -> None:
        self.pod, self.container = pod, container
        self._role, self._tail = role, tail
        self._from = self._last = BEGINNING
        self._given: Counter[str] = Counter()  # of the last second

    @property
    def since(self) -> str | None:
        """From when on to read, RFC 3339; the server counts in whole seconds. None before the first line."""
        return None if self._last == BEGINNING else self._last.second.strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def tail(self) -> int | None:
        """Number of lines to ask for: at least one, to know from where on lines are new."""
        return None if self._tail is None else max(self._tail, 1)

    def new(self, read: bytes, *, complete: bool) -> list[tuple[Moment, Line]]:
        """Return the lines of a reading that were not given before, with their times.

        Unless it is `complete`, the container may still be writing the last line, which is left for the next reading.
        """
        *lines, rest = read.decode(errors="replace").split("\n")
        if complete and rest:
            lines.append(rest)
        again, new_lines = Counter(self._given), list[tuple[Moment, Line]]()
        for raw in lines:
            if raw.startswith(NO_LOG):
                continue
            moment, text = self._parse(raw)
            if again[raw]:
                again[raw] -= 1
            elif moment >= self._from:
                new_lines.append((moment, Line(self._role, self.pod, text)))
                self._note(moment, raw)
        if self._tail is None or (read and not new_lines):
            return new_lines
        return self._first(new_lines)

    def _first(self, lines: list[tuple[Moment, Line]]) -> list[tuple[Moment, Line]]:
        """Return the lines of the first reading: from its first line on, everything is known or new."""
        self._from, tail, self._tail = lines[0][0] if lines else BEGINNING, self._tail, None
        return lines if tail else []

    def _note(self, moment: Moment, raw: str) -> None:
        if moment.second > self._last.second:
            self._last = moment
            self._given.clear()
        if moment.second == self._last.second:
            self._given[raw] += 1

    def _parse(self, raw: str) -> tuple[Moment, str]:
        """Return the time and text of a line.

        One without a time, such as the kubelet's own, has that of the line before.
        """
        stamp = STAMP.match(raw)
        if not stamp:
            return max(self._last, self._from), raw
        second = datetime.fromisoformat(stamp[1] + stamp[3]).astimezone(UTC)
        return Moment(second, (stamp[2] or "").ljust(9, "0")), raw[stamp.end() :]


class Repetitions:
    """Lines that a pod repeats of the one before it: a new submitter reads the command's log from its beginning."""

    def __init__(self) -> None:
        self._given: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._read: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def is_new(self, owner: str, line: Line) -> bool:
        """Return whether no pod of that owner has given the line.

        Its pod has read it more often than all have given it.
        """
        read, given = self._read[line.source], self._given[owner]
        read[line.text] += 1
        new = read[line.text] > given[line.text]
        given[line.text] += new
        return new
