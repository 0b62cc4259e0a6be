"""``python -m tests.messages``: every error of this package, and what its text says.

Whoever meets an error has to learn three things from its text: what is wrong, where, and what to
do. This module finds every place where a class of ``largek_dask/errors.py`` is made, puts its text
together as far as the source says it, with names in braces for values, and looks for each:

- *what*: a clause of some words of its own.
- *where*: a value or a parameter by its name that says which of all things it is, or the whole of
  what was given: the rows, the labels, the weights.
- *do*: what is asked for ("give ...", "use ...", "choose ..."), or the condition that has to hold
  ("must be ...", "at least ...", "only ..."), from which it follows.

It prints the texts by class, with what they lack; the exit code is 1 if one lacks anything and is
not among ``EXCEPTIONS``. Whether a text can be understood is for readers: read the list.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "largek_dask"

INTERNAL = {
    "CancelledFit": "is caught by the driver, which writes the model that there is",
    "LostJobError": "ends a run that another scheduler goes on with; nobody has to do anything",
}
"""Classes that no user meets, with the reason."""

FOLDERS = {
    "largek_dask/kernels/": "arguments of this package's own code",
    "largek_dask/passes/broadcast.py": "the cause of a lost share, which is computed again",
    "largek_dask/passes/waiting.py": "the cause of a lost share, which is computed again",
}
"""Beginnings of places whose errors reach nobody, with the reason."""

LOST = "the cause of a lost share, which is computed again"
SKLEARN = "scikit-learn's own words, which its checks look for"
ELSEWHERE = "another error's text, which is looked at where it is made"
EXCEPTIONS = {
    "{outcome.worker} is gone": LOST,
    "{target} takes no tasks any more": LOST,
    "totals were lost on their workers": LOST,
    "X has {rows.n_features} features, but": SKLEARN,
    "The feature names should match those": SKLEARN,
    "{error}{self._advice": ELSEWHERE,
    "{estimator} has no models of the kind": "advice by the kind, made above",
    "{where} has no column {name}": "it names those that there are",
    "the process that compiles for": "it tells what that process said, whatever it was",
    "it finds the shape": "what a worker answers: the error that tells it says what to do",
    "{str(error)": ELSEWHERE,
    "{name}: {message}": ELSEWHERE,
    "{block}: {error}": ELSEWHERE,
    "{told}": ELSEWHERE,
    "job {job_id} has no model: {error}": ELSEWHERE,
    "job {job_id} is {job.state}: {otherwise}": "the caller says what to do: cancel it, or wait",
    "there is no job {job_id}; the jobs there are": "it names those that there are",
    "the address {error}": ELSEWHERE,
    "this is no job: ": "each field that is wrong says what it has to be",
    "{folder.url} {holds} ({names[0]}": "the caller says what to do instead, as advice",
    "{what} has dtype {dtype}, not numbers": "advice by the type, made above",
    "{what} has {len(shape)} dimensions": "advice by the number of dimensions, made above",
}
"""Beginnings of texts that may lack a part, with the reason."""

WORDS = 3
"""Words of its own that a text has at least."""

VERBS = (
    "add|allow|ask|begin|build|call|check|choose|clean|cluster|compare|connect|convert|copy|cut|"
    "delete|divide|draw|drop|encode|export|fill|fit|flatten|free|give|go on|ingest|install|keep|"
    "leave|let|load|make|mend|merge|move|multiply|name|number|open|pass|pip install|put|read|"
    "remove|rename|repeat|restart|run|save|scale|see|select|send|set|show|skip|sort|start|stop|store|submit|"
    "remove|rename|repeat|restart|run|save|scale|see|select|send|set|show|skip|sort|start|stop|store|submit|"
    "supply|take|train|try|unpack|update|upgrade|use|wait|write"
)
"""Ways to begin what is to be done."""

CONDITIONS = (
    r"must\b", r"(?:has|have|had|needs?) to\b", r"needs? \S", r"at least", r"at most",
    r"one of", r"\bonly\b", r"up to", r"belongs? to", r"cannot be (?:changed|more|less)",
    r"may (?:have|be|hold|not)", r"is for\b", r"are for\b", r"goes? from .+ to", r"go on with",
    r"not \{", r"takes (?:an?|one) ",
)  # fmt: skip
"""Ways to say what has to hold."""

ADVICE = re.compile(
    rf"(?:^|[.:;,(}}] ?|\b(?:or|and|first|then|so|please) )(?:{VERBS})\b", re.IGNORECASE
)
CONDITION = re.compile("|".join(CONDITIONS), re.IGNORECASE)
VALUE = re.compile(r"\{[^}]*\}")
TABLE = re.compile(r"\b(?:rows?|labels|weights|cluster|DataFrame|dict|job document|fit)\b")
PARAMETER = re.compile(r"\b[a-z]+_[a-z_]+\b|--[a-z]|'[^']+'|\b[a-z]+=|\b[a-z]+\.[a-z-]+\b|\binit\b")


@dataclass(frozen=True)
class Message:
    """The text of an error, where it is made."""

    place: str
    """File and line."""
    error: str
    """Name of the class."""
    text: str
    """Text with ``{names}`` for values; "" where the source does not say it there."""

    def lacks(self) -> list[str]:
        """The parts that are not found: "what", "where" and "do"."""
        own = VALUE.sub(" ", self.text)
        found = {
            "what": len(re.findall(r"[A-Za-z]{2,}", own)) >= WORDS,
            "where": any(found.search(self.text) for found in (VALUE, PARAMETER, TABLE)),
            "do": bool(ADVICE.search(self.text) or CONDITION.search(self.text)),
        }
        return [part for part, is_there in found.items() if not is_there]

    @property
    def reason(self) -> str:
        """Why it may lack a part; "" if it may not."""
        reasons = [
            *(why for begin, why in EXCEPTIONS.items() if self.text.startswith(begin)),
            *(why for begin, why in FOLDERS.items() if self.place.startswith(begin)),
            *(why for error, why in INTERNAL.items() if self.error == error),
        ]
        return next(iter(reasons), "")


class Module:
    """A module's functions and constants, for texts that are put together elsewhere."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self.values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, []).append(node.value)

    def texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """All texts that an expression may be; ``{code}`` where the source does not say."""
        unknown = ["{" + ast.unparse(node) + "}"]
        if depth > 4:
            return unknown
        match node:
            case ast.Constant(str(text)):
                return [text]
            case ast.JoinedStr(values):
                parts = [self.texts(value, depth) for value in values]
                return ["".join(parts_of) for parts_of in product(*parts)]
            case ast.FormattedValue(value):
                return self._short(value, depth)
            case ast.BinOp(left, ast.Add(), right):
                return [
                    a + b for a in self.texts(left, depth + 1) for b in self.texts(right, depth + 1)
                ]
            case ast.IfExp(_, body, orelse):
                return self.texts(body, depth + 1) + self.texts(orelse, depth + 1)
            case ast.Name(name) if name in self.values and depth == 0:
                return [t for v in self.values[name] for t in self.texts(v, depth + 1)]
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name in self.functions:
                returned = [
                    n.value
                    for n in ast.walk(self.functions[name])
                    if isinstance(n, ast.Return) and n.value is not None
                ]
                return [t for v in returned for t in self.texts(v, depth + 1)] or unknown
        return unknown

    def _short(self, value: ast.expr, depth: int) -> list[str]:
        """A value within a text: its code, or its texts where it chooses between some."""
        if isinstance(value, ast.IfExp):
            return self.texts(value, depth + 1)
        code = ast.unparse(value)
        return ["{" + (code if "{" not in code and len(code) < 40 else "...") + "}"]


def classes() -> set[str]:
    """Names of the errors of ``errors.py``; warnings are none."""
    tree = ast.parse((PACKAGE / "errors.py").read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.endswith("Warning")
    }


def messages_in(source: str, name: str, errors: set[str]) -> Iterator[Message]:
    """The errors that a module makes."""
    tree = ast.parse(source)
    module = Module(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        made = node.func
        error = made.id if isinstance(made, ast.Name) else getattr(made, "attr", "")
        if error in errors:
            for text in dict.fromkeys(module.texts(node.args[0])):
                yield Message(f"{name}:{node.lineno}", error, " ".join(text.split()))


def messages() -> list[Message]:
    """The errors that the package makes, by file and line."""
    errors = classes()
    return [
        message
        for path in sorted(PACKAGE.rglob("*.py"))
        for message in messages_in(path.read_text(), str(path.relative_to(ROOT)), errors)
    ]


def main() -> None:
    """Print all texts, and what they lack."""
    found = messages()
    poor = [message for message in found if message.lacks() and not message.reason]
    for error in sorted({message.error for message in found}):
        print(f"\n{error}")
        for message in found:
            if message.error == error:
                lacks = f" [lacks {', '.join(message.lacks())}]" if message.lacks() else ""
                why = f" [may: {message.reason}]" if lacks and message.reason else ""
                print(f"  {message.place}{lacks}{why}\n    {message.text}")
    print(f"\n{len(found)} texts; {len(poor)} lack something")
    sys.exit(1 if poor else 0)


if __name__ == "__main__":
    main()
