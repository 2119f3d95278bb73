"""Reads the collectives and copies of a compiled program, and how often each runs, from its text.

The compiler counts the body of a loop once. Here the trip count comes from the metadata of the loop
(a scan), from the name that `microbatches.fold` gave it, or from the caller.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rl4p.learner.microbatches import max_iterations

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
REDUCE_AND_SLICE = "all-reduce-scatter"  # a fusion that a TPU runs as a reduce-scatter
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
OPERATION = re.compile(r"(?:^|[\s)}\]])([a-z][\w\-]*)\(")
SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
SEMAPHORE = re.compile(r"[us]32\[\]")
CALLED = re.compile(r"(?:calls|to_apply|called_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"(?:true_computation|false_computation)=%?([\w.\-]+)")
BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective instruction."""

    kind: str  # one of `KINDS`
    bytes: int  # the bytes of the full array that n devices gather, reduce or exchange
    group: tuple[int, ...]  # the n devices of the first group, by their index in the mesh
    times: int  # the number of times that it runs
    name: str  # the name of the original operation, with its scopes

    @property
    def sent(self) -> float:
        """Returns the least bytes that one device sends: b (n - 1) / n, twice for an all-reduce."""
        if self.kind == "collective-permute":
            return self.times * self.bytes
        share = (len(self.group) - 1) / len(self.group)
        return self.times * self.bytes * share * (2 if self.kind == "all-reduce" else 1)


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction: the shapes of its results, its operation, and its full line."""

    shapes: str
    operation: str
    line: str

    @property
    def name(self) -> str:
        match = re.search(r'op_name="([^"]*)"', self.line)
        return match[1] if match else ""


@dataclass(kw_only=True)
class Module:
    """A program as a set of named computations."""

    entry: str = ""
    computations: dict[str, list[Instruction]] = field(default_factory=lambda: defaultdict(list))

    def times(self, iterations: int) -> Mapping[str, int]:
        """Returns how often each computation runs. All branches of a conditional count."""
        counts: dict[str, int] = defaultdict(int)

        def visit(name: str, times: int) -> None:
            counts[name] += times
            for instruction in self.computations.get(name, ()):
                for child, each in called(self, instruction, iterations):
                    visit(child, times * each)

        visit(self.entry, 1)
        return counts


def parse(text: str) -> Module:
    module, current = Module(), ""
    for line in text.splitlines():
        if not line.startswith(" "):
            match = COMPUTATION.match(line)
            if match:
                current = match[1]
                if line.startswith("ENTRY"):
                    module.entry = current
            continue
        match = INSTRUCTION.match(line)
        operation = OPERATION.search(match[2]) if match else None
        if match and operation:
            shapes = match[2][: operation.start(1)]
            module.computations[current].append(
                Instruction(shapes=shapes, operation=operation[1], line=line)
            )
    return module


def called(module: Module, instruction: Instruction, iterations: int) -> Iterator[tuple[str, int]]:
    """Yields the computations that an instruction calls, and how often."""
    line = instruction.line
    if instruction.operation != "while":
        for name in (*CALLED.findall(line), *BRANCHES.findall(line)):
            yield name, 1
        branches = re.search(r"branch_computations=\{([^}]*)\}", line)
        for name in branches[1].split(",") if branches else ():
            yield name.strip().lstrip("%"), 1
        return
    if not (body := re.search(r"body=%?([\w.\-]+)", line)):
        return
    # The trip count of a loop stands in its metadata, or is a constant in its condition.
    known, constants = 0, {}
    if word := re.search(r'known_trip_count"?[:=]\s*\{"?n"?[:=]\s*"?(\d+)', line):
        known = int(word[1])
    elif condition := re.search(r"condition=%?([\w.\-]+)", line):
        lines = [each.line for each in module.computations.get(condition[1], ())]
        for each in lines:
            if match := re.search(r"%?([\w.\-]+) = s32\[\]\S* constant\((\d+)\)", each):
                constants[match[1]] = int(match[2])
        for each in lines:
            less = re.search(r"ROOT .* compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT", each)
            known = known or (constants.get(less[1], 0) if less else 0)
    most = max_iterations(instruction.name)
    yield body[1], known or (iterations if most is None else most)


def sizes(shapes: str) -> Iterator[int]:
    """Yields the bytes of each array in a text of shapes such as u8[4,2]{1,0}."""
    for kind, dimensions in SHAPE.findall(shapes):
        digits = re.search(r"\d+", kind)
        bits = BITS.get(kind, int(digits[0]) if digits else 8)
        yield math.prod(int(n) for n in dimensions.split(",") if n) * bits // 8


def first_group(line: str) -> tuple[int, ...]:
    """Returns the devices of the first group of a collective, by their index in the mesh."""
    match = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", line)
    if match:
        return tuple(map(int, match[1].split(",")))
    match = re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if match:
        sizes, order = (tuple(map(int, re.findall(r"\d+", match[n] or ""))) for n in (2, 3))
        places = np.arange(math.prod(sizes)).reshape(sizes)
        places = places.transpose(order) if order else places
        return tuple(places.reshape(-1, int(match[1]))[0].tolist())
    match = re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line)
    if match:
        axes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        together = re.findall(r"'([^']+)'", match[2])
        places = np.arange(math.prod(axes.values())).reshape(*axes.values())
        one = tuple(slice(None) if axis in together else 0 for axis in axes)
        return tuple(places[one].ravel().tolist())
    return (0, 1)


def collectives(text: str, iterations: int = 1) -> list[Collective]:
    """Returns the collectives of a program, for the maximum trip counts of its loops.

    Args:
      iterations: the trip count of loops whose trip count is unknown.
    """
    module, operations = parse(text), []
    for name, times in module.times(iterations).items():
        for instruction in module.computations.get(name, ()):
            kind = instruction.operation.removesuffix("-start")
            if kind not in KINDS or not times:
                continue
            group = first_group(instruction.line)
            n, whole = len(group), sum(sizes(SEMAPHORE.sub("", instruction.shapes)))
            if instruction.operation.endswith("-start"):
                # The results of a start include its arguments, and on a TPU the numbers of its
                # semaphores. Only those of an all-reduce do not.
                with_arguments = {"all-gather": (n, n + 1), "reduce-scatter": (n, n + 1)}
                with_arguments["collective-permute"] = 1, 2
                part, parts = with_arguments.get(kind, (1, 1))
                whole = whole * part // parts
            elif kind == "reduce-scatter":
                whole *= n
            if name.startswith(REDUCE_AND_SLICE):
                kind = "reduce-scatter"
            operations.append(
                Collective(kind=kind, bytes=whole, group=group, times=times, name=instruction.name)
            )
    return operations


def largest_loop_copy(text: str) -> int:
    """Returns the bytes of the largest array that a loop body copies; 0 if none is copied."""
    module = parse(text)
    bodies, waiting = set(), []
    for instructions in module.computations.values():
        for instruction in instructions:
            if instruction.operation == "while":
                waiting += [name for name, _ in called(module, instruction, 1)]
    while waiting:
        name = waiting.pop()
        if name not in bodies:
            bodies.add(name)
            waiting += [
                child
                for instruction in module.computations.get(name, ())
                for child, _ in called(module, instruction, 1)
            ]
    copies = (
        max(sizes(instruction.shapes), default=0)
        for name in bodies
        for instruction in module.computations.get(name, ())
        if instruction.operation in ("copy", "copy-start")
    )
    return max(copies, default=0)
