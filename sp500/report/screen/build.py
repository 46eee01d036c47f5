"""The first screen of these runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp500.formatting import name_command
from sp500.report.screen import money, room, sameness, skill, timing
from sp500.report.screen.answer import COMMANDS, COSTS, FASTER, FITS, GOOD, HOLDS, SAME, Facts
from sp500.report.screen.headline import Screen, write_headline, write_note


def build(facts: Facts, flags: str = "") -> Screen:
    """Return the headline, the answers that runs give, and the commands of those that none gives.

    `flags` name the prices for the commands.
    """
    timings = timing.collect(facts)
    answers = {
        FITS: room.answer(facts.scale),
        FASTER: timing.answer(timings),
        COSTS: money.answer(facts, timings),
        SAME: sameness.answer(sameness.collect(facts)),
        GOOD: skill.answer(facts.groups),
    }
    given = tuple(answer for answer in answers.values() if answer)
    asked = [question for question, answer in answers.items() if answer is None]
    asked += [] if facts.folds else [HOLDS]
    commands = tuple((question, name_command(*COMMANDS[question]) + flags * (question != COSTS)) for question in asked)
    return Screen(write_headline(facts, timings), write_note(facts, timings), given, commands)


def numbers(screen: Screen) -> Mapping[str, Any]:
    """Return its part of report.json."""
    answers = [
        {"question": item.question, "number": item.number, "caption": item.caption, "section": item.section}
        for item in screen.answers
    ]
    unanswered = [{"question": question, "command": command} for question, command in screen.unanswered]
    return {
        "answers": {
            "headline": screen.headline,
            "note": screen.note,
            "answers": answers,
            "unanswered": unanswered,
        }
    }
