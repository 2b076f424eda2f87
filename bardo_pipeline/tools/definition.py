"""Definition of a memory tool: name, description, guidance by phase, schemas of arguments and result.

Source: TOOLS (ToolDef), MEM-21.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from bardo_pipeline.errors import ToolError
from bardo_pipeline.storage.intake.json_reader import sentence_of
from bardo_pipeline.tools.schemas import Arguments, Result
from bardo_pipeline.tools.tool_call import ToolCall

Capability = Literal["read", "write"]
TickBudget = Literal["fast", "medium", "slow"]


@dataclass(frozen=True)
class Guidance:
    """Advice on the use of a tool, by behavioural phase of the golem (canon 33: stable follows thriving)."""

    thriving: str
    cautious: str
    declining: str
    terminal: str

    @property
    def text(self) -> str:
        """The advice for all phases, one line each."""
        lines = {"thriving, stable": self.thriving, "cautious (conservation)": self.cautious}
        lines |= {"declining": self.declining, "terminal": self.terminal}
        return "\n".join(f"- {phase}: {advice}" for phase, advice in lines.items())


@dataclass(frozen=True)
class Tool:
    """A memory tool.

    Parameters
    ----------
    name : name by which it is called
    summary : the effect, in two or three sentences
    capability : `write` records life events; `read` records nothing
    tick_budget : expected duration (TOOLS: fast, medium, slow)
    steps : steps that `tool:update` reports, in order
    guidance : advice by phase
    arguments, result : models of the arguments and of the result
    run : function of a call and its arguments
    waits : whether writing calls wait for one another, because what one records depends on the log
    """

    name: str
    summary: str
    capability: Capability
    tick_budget: TickBudget
    steps: tuple[str, ...]
    guidance: Guidance
    arguments: type[Arguments]
    result: type[Result]
    run: Callable[[ToolCall, Any], Result]
    waits: bool = True

    @property
    def description(self) -> str:
        """The summary and the guidance by phase, as one text for an agent."""
        return f"{self.summary}\n\nGuidance by phase:\n{self.guidance.text}"

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self.arguments.model_json_schema()

    def checked(self, arguments: object) -> Arguments:
        """Return the arguments of a call. Raises ToolError, which names each wrong argument and the correction."""
        try:
            return self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise self._argument_error(error) from None

    def _argument_error(self, error: ValidationError) -> ToolError:
        fields = self.arguments.model_fields
        named = {str(detail["loc"][0]) for detail in error.errors(include_url=False) if detail["loc"]}
        wrong = [name for name in fields if name in named]
        cures = [f"give a valid {' and '.join(wrong)}"] if wrong else []
        cures += ["leave out other arguments"] if named - fields.keys() else []
        cure = ", ".join(cures) or "give an object of arguments"
        return ToolError(f"tool {self.name}: {sentence_of(error)}: {cure}; the tool takes {', '.join(fields)}")

    @property
    def output_schema(self) -> dict[str, Any]:
        """JSON Schema of the result."""
        return self.result.model_json_schema(mode="serialization")
