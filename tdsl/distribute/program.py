"""The compiled form of a schedule with distributed funcs: its plans and their execution."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tdsl.codegen.runtime.arrays import Array, as_array, as_scalar
from tdsl.codegen.runtime.binding import bind, bind_sizes, check_shape
from tdsl.codegen.runtime.signature import ArrayArg, ScalarArg, Signature
from tdsl.communication.step_costs import cost
from tdsl.communication.steps import RankPlan
from tdsl.core.notebook import Listing
from tdsl.core.source import here
from tdsl.cost.network import links_of
from tdsl.distribute import mpi, mpi_execution
from tdsl.distribute.check_placed import check_placed
from tdsl.distribute.checkpoint import (
    SavedArray,
    agree,
    check_arrays,
    check_manifest,
    check_step,
    identity_of,
    load_block,
    save,
)
from tdsl.distribute.donated import Donated
from tdsl.distribute.engine import Task, Worker
from tdsl.distribute.manifest import read_manifest
from tdsl.distribute.plan import Plan
from tdsl.distribute.show import show_step
from tdsl.distribute.simulate import simulate
from tdsl.distribute.specialised_program import SpecialisedProgram
from tdsl.distribute.time_model import TimeModel
from tdsl.distribute.trace import (
    measured_slices,
    model_parameters,
    operations_per_point,
    write_trace,
)
from tdsl.errors import (
    ScheduleError,
    ShapeError,
    Suggesting,
    TargetError,
    TdslError,
    TypeMismatch,
    checked_call,
    counted,
    did_you_mean,
    is_one_of,
)
from tdsl.lang.program import Program
from tdsl.lang.sizes import check_sizes
from tdsl.machine.model import Machine
from tdsl.placement.ownership import index_within, stored_shape
from tdsl.schedule.bind import bind_state
from tdsl.schedule.state import State

EXTRA = "outputs are returned: pass the inputs only"
# ranks up to which each one verifies the plans of all of them before a run; else its own with its partners
MAX_VERIFIED_RANKS = 64


class Distributed(Suggesting):
    """A distributed program: a call runs this rank under MPI, `simulate` all ranks, `plan` lists steps."""

    def __init__(
        self, state: State, signature: Signature, sizes: Mapping[str, int],
        build: Callable[[State], Task], text: Callable[[State], str], symbolic: State,
        machine: Callable[[], Machine], definitions: Program,
    ) -> None:  # fmt: skip
        check_placed(state)
        self._machine = machine
        self._symbolic, self._definitions = symbolic, definitions
        self.state, self.signature, self.sizes = state, signature, dict(sizes)
        self._build, self._text = build, text
        self._specialised: dict[tuple[tuple[str, int], ...], SpecialisedProgram] = {}
        self._step_times: Array | None = None  # of the last call under MPI
        self._step_bytes: Array | None = (
            None  # sent and received by its steps of which data decided the sizes
        )

    def _attribute_hint(self, name: str) -> str:
        if name in ("explain", "prediction"):
            return f"the schedule has it: schedule.{name}(); plan() has bytes, trace() has times"
        if name == "loops":
            return 'plan().rank(0) has the steps of a rank, source("mpi") the loops of its tasks'
        return Suggesting._attribute_hint(self, name)

    def _specialise(self, sizes: Mapping[str, int], method: str = "") -> SpecialisedProgram:
        """The plan and tasks for sizes; `method` is the method that takes missing sizes, for the error."""
        missing = [n for n in self.signature.sizes if n not in sizes]
        if missing:
            example = ", ".join(f"{n}=100" for n in missing)
            raise ShapeError(
                f"{self.signature.name!r} is planned for sizes that are not known yet: {', '.join(missing)}",
                loc=here(),
                label="this call",
                hint=f"give them: td.compile(s, {example}){method and f', or {method}({example})'}",
            )
        key = tuple((n, sizes[n]) for n in self.signature.sizes)
        if key not in self._specialised:
            outputs = tuple(a.name for a in self.signature.outputs)
            self._specialised[key] = SpecialisedProgram(
                bind_state(self.state, dict(key)), outputs, self._build, self._symbolic
            )
        return self._specialised[key]

    def plan(self, *, memory: int | None = None, **sizes: int) -> Plan:
        """The messages and tasks of all ranks, with their costs; sizes by name where they are not fixed.

        ScheduleError if a rank needs more than `memory` bytes; TypeMismatch unless that is an integer.
        """
        if memory is not None and (not hasattr(memory, "__index__") or memory < 0):
            raise TypeMismatch(
                f"a limit of {memory!r} is no number of bytes",
                loc=here(),
                label="this call",
                hint="pass an integer, 0 or more: memory=2**30 is a GiB",
            )
        plan = self._specialise({**self.sizes, **self._checked_sizes(sizes)}, "plan").plan
        most = 0 if memory is None else max(plan.peak_memory)
        if memory is not None and most > memory:
            busiest = plan.peak_memory.index(most)
            step = cost(plan.rank(busiest), plan.sizes).peak_step
            shown = f" to {show_step(plan.rank(busiest).steps[step - 1])}" if step else ""
            raise ScheduleError(
                f"rank {busiest} needs {most} bytes, {most - memory} more than the limit, "
                f"at step {step}{shown}",
                loc=here(),
                label="this call",
                hint="communicate at a loop further in, share a copy out over an axis, or take more ranks",
            )
        return plan

    def simulate(self, *args: Any, count: bool = False, **kwargs: Any) -> Any:
        """The outputs for whole arrays, with every rank run in this process.

        With `count` also the `Traffic`, counted message by message.
        """
        values = dict(
            zip(
                (a.name for a in self.signature.inputs),
                self._whole_arguments(args, kwargs),
                strict=True,
            )
        )
        arrays = {a.name: values[a.name] for a in self.signature.inputs if isinstance(a, ArrayArg)}
        scalars = {n: v for n, v in values.items() if n not in arrays}
        shaped = [(a, arrays[a.name]) for a in self.signature.inputs if isinstance(a, ArrayArg)]
        program = self._specialise({**self.sizes, **bind_sizes(self.signature, shaped)})
        program.verify()
        workers = []
        overwritten = {w for _, w in self.state.overwrites}
        for plan in program.plan:
            blocks = {name: arrays[name][index_within(box, program.wholes[name])] for name, box in plan.owned}
            # copies: the arrays of the caller, of which several ranks may have one block, stay as they are
            blocks |= {name: block.copy() for name, block in blocks.items() if name in overwritten}
            workers.append(Worker(plan, program.tasks, blocks, scalars))
        traffic = simulate(workers)
        outputs: list[Any] = []
        for name in program.outputs:
            parts = {r: workers[r].buffers[name].arrays for r in program.owners(name)}
            outputs += program.assemble(name, parts)
        result = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return (result, traffic) if count else result

    def block(self, name: str, array: Any, rank: int | None = None) -> Array | None:
        """The block of a whole array that a rank owns, by default this one; None for no elements.

        Of inputs that are overwritten or donated it is a copy.
        """
        program, arg = self._specialise(self.sizes), self._argument(name)
        if rank is not None:
            check_rank(rank, program.plan.grid.size + program.plan.idle)
        whole = as_array(arg, array)
        shape = stored_shape(program.wholes[program.arrays[name][0]])
        check_shape(arg, whole, shape, "pass the whole array: the block of a rank is cut from it")
        part = program.block(program.arrays[name][0], whole, mpi.rank() if rank is None else rank)
        if part is None:
            return None
        is_given_up = name in self.state.donated or name in (w for _, w in self.state.overwrites)
        return np.array(part, order="C") if is_given_up else np.ascontiguousarray(part).reshape(part.shape)

    @checked_call
    def __call__(self, *args: Any, count: bool = False, **kwargs: Any) -> Any:
        """Run this rank of an MPI program: blocks of inputs in, blocks of outputs out.

        All ranks call it, each with the blocks that it owns (`block`), None for no elements. With `count`
        also the bytes and messages of this rank, counted at the MPI calls. Donated blocks are freed after
        their last reader. Raises TargetError on all ranks if the grid has another size than the run, blocks
        are wrong, or ranks run different programs.
        """
        program = self._specialise(self.sizes)
        comm = mpi.ranks_of(program.plan.grid.size, program.plan.idle)
        plan = program.plan.rank(mpi.rank())
        if program.plan.grid.size <= MAX_VERIFIED_RANKS:
            program.verify()
        values, error = self._blocks(plan, args, kwargs)
        mpi.check_agreement(comm, program.digest, "" if error is None else error.message)
        if program.plan.grid.size > MAX_VERIFIED_RANKS:
            program.verify_with_partners(comm)
        scalars = {a.name: values[a.name] for a in self.signature.inputs if isinstance(a, ScalarArg)}
        progress = program.progress
        progress.reach(0)
        for donated in (x for x in (*args, *kwargs.values()) if isinstance(x, Donated)):
            donated.release()
        worker = Worker(plan, program.tasks, values, scalars, progress.reach)
        del values  # blocks that are donated have no other reference than that of the worker
        carried = mpi_execution.run(worker, comm)
        progress.leave()
        mpi.notify_end(comm, lambda rank: mpi_execution.last_steps(program.plan.rank(rank)))
        self._step_times = np.asarray(worker.marks)
        self._step_bytes = np.array(
            [worker.routed.get(n, (0, 0)) for n in range(1, len(plan.steps) + 1)], np.int64
        ).reshape(-1, 2)
        results: list[Array | None] = []
        for name in program.outputs:
            none = (None,) * len(program.dtypes[name])
            results += worker.buffers[name].arrays if name in worker.buffers else none
        result = results[0] if len(results) == 1 else tuple(results)
        return (result, carried) if count else result

    def _blocks(
        self, plan: RankPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], TdslError | None]:
        """The arguments of this rank's call by name, and the error if they are wrong."""
        names = [a.name for a in self.signature.inputs]
        boxes, overwritten = dict(plan.owned), {w for _, w in self.state.overwrites}
        try:
            values = dict(zip(names, bind(self.signature, args, kwargs, extra=EXTRA), strict=True))
            for arg in self.signature.inputs:
                value = values[arg.name]
                if isinstance(arg, ScalarArg):
                    values[arg.name] = as_scalar(arg, value)
                elif arg.name in boxes:
                    if isinstance(value, Donated):
                        check_donated(arg.name, self.state)
                        value = value.block
                    values[arg.name] = block = as_array(arg, value)
                    way = f"pass its block of the whole array: p.block({arg.name!r}, array)"
                    check_shape(arg, block, stored_shape(boxes[arg.name]), way)
                    if arg.name in overwritten:
                        check_overwritable(arg.name, block)
        except TdslError as error:
            return {}, error
        return values, None

    def trace(
        self,
        path: str | os.PathLike[str],
        *,
        latency: float | Sequence[float] | None = None,
        bandwidth: float | Sequence[float] | None = None,
        operations: float = 1e10,
        memory: float = 1e10,
        shared_by: int | Sequence[int | None] | None = None,
        collectives: str | None = None,
        in_switch: bool | Sequence[bool] = False,
        **sizes: int,
    ) -> float:
        """Write a timeline of computation and messages for ui.perfetto.dev; returns its length in seconds.

        A path that ends in ".svg" gets a picture of it: a row for each rank, in which tasks have the numbers
        of their steps.

        In a run of several ranks, which all call this, the trace is that of the last call, written by rank 0.
        Otherwise it is a model: a message takes `latency` seconds plus its bytes over `bandwidth` a second,
        each one number or one for each level of the grid, and shares links with others; tasks take their
        operations over `operations` a second, copies their bytes over `memory` a second.

        `shared_by` is the number of ranks that share a link to other groups of a level (nodes, say), in each
        direction: 1 for a link of each rank, None for one of all ranks of a group; also for each level. What
        is not given of links is that of the machine's description, as in `prediction()`.

        Each collective takes the algorithm that is fastest on these links, which its name in the trace says;
        with `collectives` that of a name, as "ring" or "halving and doubling", where it has it. `in_switch`
        says, for all levels or for each, that switches combine and copy what ranks send.
        """
        named_sizes = self._checked_sizes(sizes)
        program = self._specialise({**self.sizes, **named_sizes})
        if self._step_times is not None and mpi.size() == program.plan.grid.size + program.plan.idle > 1:
            times = {p.rank: np.empty(len(p.steps) + 1) for p in program.plan}
            mine = self._step_times if mpi.rank() in times else None
            mpi.gather(mpi.communicator(), "times of steps", times, mine, 0)
            moved = {p.rank: np.empty((len(p.steps), 2), np.int64) for p in program.plan}
            mine = None if mine is None else self._step_bytes
            mpi.gather(mpi.communicator(), "bytes of steps", moved, mine, 0)
            if mpi.rank():
                return float(self._step_times[-1] - self._step_times[0])
            return write_trace(
                path, program.plan, measured_slices(program.plan, times.values(), moved.values())
            )
        links = links_of(self._machine(), len(program.plan.grid.depths))
        if bandwidth is None:
            bandwidth = [link.bytes_per_second(link.shared_by) or inf for link in links]
            shared_by = [link.shared_by for link in links] if shared_by is None else shared_by
        if latency is None:
            latency = [link.latency or 0.0 for link in links]
        rates = model_parameters(
            program.plan.grid, latency, bandwidth, operations, memory, shared_by, collectives, in_switch
        )  # fmt: skip
        program.verify()
        counts = {s.name: operations_per_point(s) for s in program.computed}
        return write_trace(path, program.plan, TimeModel(program.plan, rates, counts).run())

    def source(self, kind: str = "mpi", **sizes: int) -> Listing:
        """The plan of all ranks as a standalone Python module for mpi4py, its tasks as code for numba.

        `run(...)` of the module takes and returns blocks, as a call does. TargetError for another kind.
        """
        if not is_one_of(kind, ("mpi",)):
            raise TargetError(
                f"a distributed program has no {kind!r} source",
                loc=here(),
                label="this call",
                hint='source("mpi") is the code of all ranks',
            )
        from tdsl.distribute.emit import emit

        program = self._specialise({**self.sizes, **self._checked_sizes(sizes)}, "source")
        names = tuple(a.name for a in self.signature.inputs)
        return Listing(emit(program.plan, program.tasks, names, self._text))

    def gather(self, name: str, block: Array | None, root: int = 0) -> Any:
        """Gather a whole input or output on rank `root` from the blocks of all ranks; None on the others.

        `block` is None on a rank without elements; TypeMismatch or ShapeError if it is not this rank's block.
        """
        program, arg = self._specialise(self.sizes), self._argument(name)
        comm = mpi.ranks_of(program.plan.grid.size, program.plan.idle)
        tensor, n = program.arrays[name]
        owners = program.owners(tensor)
        check_rank(root, mpi.size())
        mine = None
        if mpi.rank() in owners:
            block_array = as_array(arg, block)
            check_shape(arg, block_array, stored_shape(owners[mpi.rank()]))
            mine = np.ascontiguousarray(block_array).reshape(block_array.shape)
        dtype = program.dtypes[tensor][n].numpy
        parts = {r: np.empty(stored_shape(box), dtype) for r, box in owners.items()}
        mpi.gather(comm, name, parts if mpi.rank() == root else {}, mine, root)
        if mpi.rank() != root:
            return None
        return program.assemble(tensor, {r: (part,) for r, part in parts.items()})[0]

    def save(self, folder: str | os.PathLike[str], arrays: Mapping[str, Array | None], *, step: int) -> None:
        """Write a checkpoint: this rank's blocks of inputs or outputs by name, None for no elements.

        All ranks call it, with one folder, which all can write to, the same names and step. Each part of an
        array is written by one rank that owns it, and no array is gathered. When `save` returns, the
        checkpoint has replaced the last one of the folder; if the run ends before, the last one is whole.
        Tensors keep their names, so a result that is the next value of an input is saved under its name.

        TypeMismatch or ShapeError if a block is not this rank's, or ranks own partial results of the array;
        TargetError on all ranks if one has such an error or cannot write, ranks pass different steps or
        names, or the folder has a checkpoint of another program.
        """
        program, path = self._specialise(self.sizes), Path(folder)
        comm = mpi.ranks_of(program.plan.grid.size, program.plan.idle)
        identity, name, error = identity_of(self._definitions), self.signature.name, None
        saved, blocks, number = dict[str, SavedArray](), dict[str, Array](), 0
        try:
            number, arrays = check_step(step), check_arrays(arrays)
            saved = {n: self._saved_array(program, n) for n in arrays}
            for n, array in saved.items():
                if array.mine is not None:
                    block = as_array(self._argument(n), arrays[n])
                    way = f"pass its block of the whole array: p.block({n!r}, array)"
                    check_shape(self._argument(n), block, stored_shape(array.mine), way)
                    if mpi.rank() in array.owners:
                        blocks[n] = block
            check_manifest(read_manifest(path), path, name, identity, loads=False)
        except TdslError as problem:
            error = problem
        agree(comm, f"{program.digest} {path} {number} {sorted(saved)}", error)
        save(path, name, identity, str(program.plan.grid), number, saved, blocks, comm)

    def load(
        self, folder: str | os.PathLike[str], *, missing_ok: bool = False
    ) -> tuple[int, dict[str, Array | None]] | None:
        """The step and the blocks by name of this rank, new arrays, from the checkpoint of a folder.

        All ranks call it. Grid, placements and number of ranks may differ from those of the run that saved
        it: a rank reads the files whose boxes intersect its blocks. With `missing_ok`, None if the folder
        has no checkpoint yet.

        TargetError on all ranks if the manifest or a block is missing or damaged, of another version of this
        format or of another program; ShapeError if an array has another shape or dtype.
        """
        program, path = self._specialise(self.sizes), Path(folder)
        comm = mpi.ranks_of(program.plan.grid.size, program.plan.idle)
        manifest, error, blocks = None, None, dict[str, Array | None]()
        try:
            manifest = read_manifest(path)
            if manifest is not None or not missing_ok:
                identity = identity_of(self._definitions)
                check_manifest(manifest, path, self.signature.name, identity, loads=True)
        except TdslError as problem:
            error = problem
        agree(comm, "" if manifest is None else manifest.to_json(), error)
        if manifest is None:
            return None
        try:
            for name, tensor in manifest.tensors:
                array = self._saved_array(program, name)
                blocks[name] = load_block(path, tensor, array, mpi.rank())
        except TdslError as problem:
            error = problem
        agree(comm, "", error)
        return manifest.step, blocks

    def _saved_array(self, program: SpecialisedProgram, name: str) -> SavedArray:
        """An input or output as checkpoints have it; TypeMismatch if ranks own partial results of it."""
        self._argument(name)
        tensor, n = program.arrays[name]
        placement = dict(self.state.placed)[tensor]
        if placement.partial:
            raise TypeMismatch(
                f"ranks own partial results of {name!r} ({placement}), which a checkpoint cannot have",
                loc=here(),
                label="this call",
                hint=f"place {name!r} otherwise, so that its parts are combined",
            )
        return SavedArray(
            name, program.dtypes[tensor][n], program.wholes[tensor], str(placement),
            program.owners(tensor), program.plan.owned(tensor, mpi.rank()),
        )  # fmt: skip

    def _argument(self, name: str) -> ArrayArg:
        """The input or output of a name."""
        known = {a.name: a for a in self.signature.arrays}
        if name not in known:
            raise TypeMismatch(
                f"{self.signature.name!r} has no array {name!r}",
                loc=here(),
                label="this call",
                hint=did_you_mean(name, known),
            )
        return known[name]

    def _whole_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        values = bind(self.signature, args, kwargs, extra=EXTRA)
        return tuple(
            as_array(arg, value) if isinstance(arg, ArrayArg) else as_scalar(arg, value)
            for arg, value in zip(self.signature.inputs, values, strict=True)
        )

    def _checked_sizes(self, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes that a call passes by name, checked against those that are fixed."""
        program = self.state.program
        return check_sizes(
            self.signature.name, self.signature.sizes, sizes, fixed=self.sizes, equal=program.equal,
            agreements=program.agreements,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<distributed {self.signature.name} on {self.state.grid}>"


def check_overwritable(name: str, block: Array) -> None:
    """TypeMismatch unless a block of an input can be written to in place."""
    if not (block.flags.c_contiguous and block.flags.writeable):
        what = "read-only" if block.flags.c_contiguous else "not contiguous"
        raise TypeMismatch(
            f"the block of {name!r}, which is overwritten, is {what}",
            loc=here(),
            label="this call",
            hint=f"pass p.block({name!r}, array), which copies it",
        )


def check_donated(name: str, state: State) -> None:
    """TypeMismatch unless the schedule donates an input."""
    if name not in state.donated:
        raise TypeMismatch(
            f"{name!r} is passed as a donated block, which this program keeps",
            loc=here(),
            label="this call",
            hint=f"s.donate({name!r}) on the schedule, or pass the array itself",
        )


def check_rank(rank: int, count: int) -> None:
    """ShapeError unless 0 <= rank < count."""
    if rank not in range(count):
        raise ShapeError(
            f"there is no rank {rank!r} of {counted(count, 'rank')}",
            loc=here(),
            label="this call",
            hint=f"ranks are 0 to {count - 1}" if count > 1 else "the only rank is 0",
        )
