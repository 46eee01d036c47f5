"""`sp500 mcp`: the queue for an agent, by the Model Context Protocol. Stdout carries only the protocol."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.console import arguments
from sp500.console.output import run_command
from sp500.errors import ConfigError, SP500Error, extra
from sp500.jobs import client
from sp500.jobs.fields import Label, Memory
from sp500.jobs.target import On
from sp500.machine.units import size_bytes
from sp500.schema import validate
from sp500.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, Tool

    from sp500.commands.agent.agent_tools import AgentContext

# Threads for requests that wait; characters of a request, of its refusal, and of a name in that.
THREADS, LONGEST_REQUEST, LONGEST_ERROR, NAME = 32, 100_000, 4_000, 80
INSTRUCTIONS = (
    "Runs the experiments of sp500 as jobs of a queue. submit_job returns an id; follow it with job_status "
    "(wait up to 30 s at a time) and job_logs. Ask estimate_speedup before asking for more workers. Experiments take "
    "minutes; most models of daily returns barely beat naive forecasts, and the reports say so."
)


class Mcp(Frozen):
    """Serve the queue to an agent on stdin and stdout (Model Context Protocol), until stdin ends.

    The agent may run the experiments with settings of its choice, read all jobs and their logs, and stop
    its own. It gives no command, and names no file outside the project.
    """

    folder: Path = Path()
    """Folder of the project, with the files that its jobs may name."""
    state_dir: Path | None = None
    """Folder of the queue. Default: $XDG_STATE_HOME/sp500, or ~/.local/state/sp500."""
    runs_dir: Path | None = None
    """Folder of the runs. Default: $SP500_RUNS_DIR, or runs in the project."""
    on: tuple[On, ...] = Field(("local",), min_length=1)
    """Places where its jobs may run, the default first."""
    project: Label = "agent"
    """Project of its jobs; a budget for it, in queue.yaml, holds for the agent."""
    cluster: Path = Path("cluster/raycluster.yaml")
    """For kuberay: file with the RayCluster whose pods its jobs get."""
    context: str | None = None
    """For kuberay: context of your kubeconfig. Default: the current one."""
    namespace: Label | None = None
    """For kuberay: namespace of its jobs. Default: the cluster file's, or else that of the context, or else sp500."""
    address: str | None = None
    """For ray: address of the dashboard. Default: $RAY_ADDRESS."""
    max_jobs: int = Field(20, ge=1)
    """Jobs of its project that may be unfinished at once."""
    max_memory: Memory | None = None
    """Memory of each of its jobs on this machine; one that uses more is ended. Default: half of what jobs may hold."""
    max_disk: Memory = "50GiB"
    """Size of the folder of runs above which no job is accepted."""


def main(argv: Sequence[str]) -> int:
    """Serve and return the exit code."""

    def run() -> tuple[str, int]:
        """Serve until the end and return no text, since stdout carries the protocol."""
        with extra("agent"):
            import anyio
            import mcp  # noqa: F401 - looked for before anything else is done

        flags = arguments.parse(Mcp, argv, "sp500 mcp")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
        anyio.run(_serve, build_context(flags))
        return "", 0

    return run_command(run, only_json=False)


def _end(number: int, _: FrameType | None) -> None:
    """End at once: a thread waits for a line of stdin, and an orderly end would wait for it.

    Nothing is lost: jobs are processes of their own, and what the queue writes is written whole or not at all.
    """
    os._exit(128 + number)


def build_context(flags: Mcp) -> AgentContext:
    """Change into the project's folder and return where its jobs go. Raises ConfigError if it is not there."""
    from sp500.agent.limits import Limits
    from sp500.commands.agent.agent_tools import AgentContext

    folder = flags.folder.expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"--folder {folder}: no such folder")
    runs = (flags.runs_dir or folder / folders.default_runs()).expanduser().absolute()
    queue = client.open_queue(flags.state_dir)
    # Jobs start in the folder and with the environment of this process.
    os.chdir(folder)
    os.environ["SP500_RUNS_DIR"] = str(runs)
    place_flags = flags.model_dump(include={"cluster", "context", "namespace", "address"}) | {"state_dir": queue.folder}
    memory = size_bytes(flags.max_memory) if flags.max_memory else None
    limits = Limits(flags.max_jobs, memory, size_bytes(flags.max_disk))
    return AgentContext(queue, runs, flags.on, flags.project, place_flags, limits)


async def _serve(context: AgentContext) -> None:
    from mcp.server.stdio import stdio_server

    server = build_server(context)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def build_server(context: AgentContext) -> Server[Any]:
    """Return the MCP server. Its tools run in threads, so that one that waits does not delay the others.

    Those that wait have their own threads. Jobs are accepted one after the other, so that each counts for the next.
    """
    from anyio import CapacityLimiter, to_thread
    from mcp.server.lowlevel import Server
    from mcp.types import ListToolsResult

    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=tools())

    waits, submits = CapacityLimiter(THREADS), CapacityLimiter(1)
    limiters = {"job_status": waits, "stop_job": waits, "submit_job": submits}

    async def call_in_thread(_: object, request: Any) -> CallToolResult:
        act = partial(call_tool, context, request.name, request.arguments or {})
        return await to_thread.run_sync(act, limiter=limiters.get(request.name))

    return Server(
        "sp500", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_in_thread
    )


def tools() -> list[Tool]:
    """Return the tools as an agent sees them."""
    from mcp.types import Tool, ToolAnnotations

    from sp500.commands.agent.agent_tools import TOOLS

    return [
        Tool(
            name=name,
            description=tool.takes.__doc__,
            input_schema=tool.takes.model_json_schema(),
            annotations=ToolAnnotations(**tool.hints),
        )
        for name, tool in TOOLS.items()
    ]


def call_tool(context: AgentContext, name: str, arguments: dict[str, object]) -> CallToolResult:
    """Call a tool. A refusal is an error with its reason."""
    from mcp.types import CallToolResult, TextContent

    from sp500.agent import answer_text
    from sp500.commands.agent.agent_tools import TOOLS

    try:
        if name not in TOOLS:
            raise ConfigError(f"{name[:NAME]}: no such tool; there are {', '.join(TOOLS)}")
        if (size := len(json.dumps(arguments))) > LONGEST_REQUEST:
            raise ConfigError(f"the arguments have {size} characters; at most {LONGEST_REQUEST} are accepted")
        tool = TOOLS[name]
        text, plain = tool.act(context, validate(tool.takes, arguments, name))
    except SP500Error as error:
        text = answer_text.shorten(str(error), LONGEST_ERROR)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(plain))
