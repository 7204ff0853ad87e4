"""The report of a selftest: outcomes of steps by section, and what a reader is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npusim.selftest.steps import Step


class Report:
    """Outcomes, as they come.

    Attributes:
        facts: what the report's file holds: of the machine, and by section.
        failures: one sentence each.
    """

    def __init__(self, facts: dict[str, Any], sections: tuple[str, ...]) -> None:
        self.facts = facts
        self.failures: list[str] = []
        for section in sections:
            empty = {"passed": 0, "failures": [], "refused": {}}
            facts[section] = empty if section == "conformance" else {}
        facts["failures"] = 0

    def add(self, step: Step, outcome: dict[str, Any]) -> None:
        """Adds the outcome of a step."""
        if "failure" in outcome:
            self.failures.append(f"{step.name}: {outcome['failure']}")
            self.facts["failures"] = len(self.failures)
        if step.section == "conformance":
            self._add_case(outcome)
        else:
            self.facts[step.section][step.name] = outcome

    def _add_case(self, outcome: dict[str, Any]) -> None:
        cases = self.facts["conformance"]
        if "failure" in outcome:
            cases["failures"].append(self.failures[-1])
        elif refused := outcome.get("refused"):
            cases["refused"][refused] = cases["refused"].get(refused, 0) + 1
        else:
            cases["passed"] += 1

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yields the rows of a table: what was proved, and what came out."""
        if (cases := self.facts.get("conformance")) is not None:
            refused = sum(cases["refused"].values())
            text = f"{cases['passed']} agree with PyTorch, {len(cases['failures'])} do not"
            yield "cases", text + (f", {refused} have no kernel" if refused else "")
        if (models := self.facts.get("models")) is not None:
            well = sum("failure" not in row for row in models.values())
            yield "models", f"{well} of {len(models)} agree with PyTorch"
        for name, row in self.facts.get("decoders", {}).items():
            said = row.get("left_out") or row.get("failure")
            yield name, said or f"{row['tokens']} tokens as the CPU's, forked, rewound"
        for name, row in self.facts.get("timings", {}).items():
            if "failure" not in row:
                yield name, _speed(row)


def _speed(row: dict[str, Any]) -> str:
    rates = f"{row['bytes_per_s'] / 1e9:.3g} GB/s, {row['operations_per_s'] / 1e9:.3g} GFLOP/s"
    others = {"cpu_median_s": "the CPU", "libraries_median_s": "with libraries"}
    beside = (f"; {name} {1e3 * row[key]:.4g} ms" for key, name in others.items() if key in row)
    return f"{row['median_s'] * 1e3:.4g} ms, {rates}{''.join(beside)}"
