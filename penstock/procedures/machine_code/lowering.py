"""Generate LLVM code for a kernel from its syntax tree.

Numba compiles a function from its bytecode: it finds blocks, variables and types anew, checks each index, and
counts references. A generated kernel has a thousand lines, but contains only numbers, arrays, branches and
loops. So this module writes the kernel's LLVM code itself, in a single walk. Numba still supplies the meaning
of operators, conversions and calls, the wrapper for Python, and the cache on disk.

A variable is a place on the stack, which LLVM turns into registers. An index is never negative. Only a set
has memory of its own. A set is released when its variable gets another set, and at the end of the kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from penstock.procedures.local import set_kernels
from penstock.procedures.machine_code.types_of import (
    CASTS,
    OPERATORS,
    PICKS,
    SET,
    Types,
    constant_of,
    is_set,
    refuse_construct,
)

__all__ = ["Lowering"]

_INT64 = ir.IntType(64)
_STEP_PLACES = 3


class Lowering:
    """Writes the code of one kernel into the function of a builder.

    Parameters
    ----------
    context : numba.core.base.BaseContext
        Finds numba's implementation of a function.
    builder : llvmlite.ir.IRBuilder
        The builder of the function that gets the code.
    kinds : Types
        The types of the kernel's variables.
    space : mapping
        The globals of the kernel's module.
    """

    def __init__(self, context: Any, builder: Any, kinds: Types, space: Mapping[str, Any]) -> None:
        self._context, self._builder = context, builder
        self._kinds, self._space = kinds, space
        self._places: dict[str, Any] = {}
        self._arrays: dict[str, tuple[Any, Any, list[Any]]] = {}
        self._loops: list[tuple[Any, Any]] = []
        self._end: Any = None
        self._result: Any = None

    def run(self, function: ast.FunctionDef, arguments: Sequence[Any]) -> Any:
        """Write the kernel; return its result."""
        builder, variables = self._builder, self._kinds.variables
        for argument, value in zip(function.args.args, arguments, strict=True):
            kind = variables[argument.arg]
            if isinstance(kind, types.Array):
                array = self._context.make_array(kind)(self._context, builder, value)
                sizes = cgutils.unpack_tuple(builder, array.shape, kind.ndim)
                self._arrays[argument.arg] = value, array.data, sizes
            else:
                self._assign(argument.arg, value)
        if self._kinds.result is not types.none:
            self._result = self._new_place(self._kinds.result, "result")
        self._end = builder.append_basic_block("end")
        self._body(function.body)
        self._go(self._end)
        builder.position_at_end(self._end)
        for name, place in self._places.items():
            if variables[name] == SET:
                self._context.nrt.decref(builder, SET, builder.load(place))
        return self._context.get_dummy_value() if self._result is None else builder.load(self._result)

    # Statements

    def _body(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            # Code after a jump never runs.
            if self._builder.block.is_terminated:
                return
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value, kind = self._value(node.value)
            for target in node.targets:
                self._store(target, value, kind)
        elif isinstance(node, ast.AugAssign):
            # The target's index has no side effects, so it may be evaluated twice.
            self._store(node.target, *self._value(ast.BinOp(node.target, node.op, node.value)))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While):
            self._while(node)
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.Break):
            self._go(self._loops[-1][1])
        elif isinstance(node, ast.Continue):
            self._go(self._loops[-1][0])
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self._builder.store(self._convert(node.value, self._kinds.result), self._result)
            self._go(self._end)
        elif isinstance(node, ast.Expr):
            call = node.value
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "add"
            ):
                self._call(set_kernels.add, [call.func.value, *call.args])
            elif not isinstance(node.value, ast.Constant):
                self._value(node.value)
        elif not isinstance(node, ast.Pass):
            raise refuse_construct(node)

    def _if(self, node: ast.If) -> None:
        builder = self._builder
        yes, after = builder.append_basic_block("yes"), builder.append_basic_block("after")
        no = builder.append_basic_block("no") if node.orelse else after
        builder.cbranch(self._condition(node.test), yes, no)
        for block, body in ((yes, node.body), (no, node.orelse)):
            if body:
                builder.position_at_end(block)
                self._body(body)
                self._go(after)
        builder.position_at_end(after)

    def _while(self, node: ast.While) -> None:
        builder = self._builder
        head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        self._go(head)
        builder.position_at_end(head)
        builder.cbranch(self._condition(node.test), body, after)
        self._loop(node.body, body, head, after)

    def _for(self, node: ast.For) -> None:
        """Write a loop over a range, which counts down the number of its iterations."""
        builder = self._builder
        if not isinstance(node.iter, ast.Call) or not isinstance(node.target, ast.Name):
            raise refuse_construct(node)
        bounds = [self._convert(argument, types.int64) for argument in node.iter.args]
        one, zero = ir.Constant(_INT64, 1), ir.Constant(_INT64, 0)
        start, stop = (zero, bounds[0]) if len(bounds) == 1 else bounds[:2]
        step = bounds[2] if len(bounds) == _STEP_PLACES else one
        turns = self._new_place(types.int64, "turns")
        place = self._new_place(types.int64, "at")
        builder.store(start, place)
        builder.store(self._count_iterations(start, stop, step), turns)
        head, body, again, after = (
            builder.append_basic_block(name) for name in ("head", "body", "again", "after")
        )
        self._go(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_unsigned("!=", builder.load(turns), zero), body, after)
        builder.position_at_end(body)
        self._assign(node.target.id, builder.load(place))
        self._loop(node.body, builder.block, again, after)
        builder.position_at_end(again)
        builder.store(builder.sub(builder.load(turns), one), turns)
        builder.store(builder.add(builder.load(place), step), place)
        self._go(head)
        builder.position_at_end(after)

    def _count_iterations(self, start: Any, stop: Any, step: Any) -> Any:
        """Return the number of iterations of a range, which always fits into 64 bits without a sign."""
        builder, one, zero = self._builder, ir.Constant(_INT64, 1), ir.Constant(_INT64, 0)
        if isinstance(step, ir.Constant):
            runs, count = builder.icmp_signed("<", start, stop), builder.sub(stop, start)
            return builder.select(runs, count, zero)
        rises = builder.icmp_signed(">", step, zero)
        low, high = builder.select(rises, start, stop), builder.select(rises, stop, start)
        size = builder.select(rises, step, builder.neg(step))
        count = builder.add(builder.udiv(builder.sub(builder.sub(high, low), one), size), one)
        return builder.select(builder.icmp_signed("<", low, high), count, zero)

    def _loop(self, nodes: Sequence[ast.stmt], body: Any, again: Any, after: Any) -> None:
        self._builder.position_at_end(body)
        self._loops.append((again, after))
        self._body(nodes)
        self._loops.pop()
        self._go(again)
        self._builder.position_at_end(after)

    def _go(self, block: Any) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    # Variables and elements

    def _new_place(self, kind: Any, name: str) -> Any:
        return cgutils.alloca_once(self._builder, self._context.get_value_type(kind), name=name)

    def _assign(self, name: str, value: Any) -> None:
        if name not in self._places:
            self._places[name] = self._new_place(self._kinds.variables[name], name)
        if self._kinds.variables[name] == SET:
            # A new place is empty, and releasing an empty place has no effect.
            self._context.nrt.decref(self._builder, SET, self._builder.load(self._places[name]))
        self._builder.store(value, self._places[name])

    def _store(self, target: ast.expr, value: Any, kind: Any) -> None:
        context, builder = self._context, self._builder
        if isinstance(target, ast.Name):
            self._assign(target.id, context.cast(builder, value, kind, self._kinds.variables[target.id]))
        elif isinstance(target, ast.Subscript):
            pointer, element = self._pointer(target)
            context.pack_value(builder, element, context.cast(builder, value, kind, element), pointer)
        else:
            raise refuse_construct(target)

    def _pointer(self, node: ast.Subscript) -> tuple[Any, Any]:
        """Return the address of an array's element, and its type."""
        if not isinstance(node.value, ast.Name):
            raise refuse_construct(node)
        builder = self._builder
        _, data, sizes = self._arrays[node.value.id]
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        at = self._convert(places[0], types.int64)
        for size, place in zip(sizes[1:], places[1:], strict=True):
            at = builder.mul(at, size)
            if not isinstance(place, ast.Slice):
                at = builder.add(at, self._convert(place, types.int64))
        return builder.gep(data, [at], inbounds=True), self._kinds.variables[node.value.id].dtype

    # Expressions

    def _convert(self, node: ast.expr, kind: Any) -> Any:
        value, found = self._value(node)
        return self._context.cast(self._builder, value, found, kind)

    def _condition(self, node: ast.expr) -> Any:
        return self._convert(node, types.boolean)

    def _value(self, node: ast.expr) -> tuple[Any, Any]:
        """Write an expression; return its value and its type."""
        context, builder, kinds = self._context, self._builder, self._kinds
        if isinstance(node, ast.Name) and node.id in kinds.variables:
            kind = kinds.variables[node.id]
            is_array = node.id in self._arrays
            return self._arrays[node.id][0] if is_array else builder.load(self._places[node.id]), kind
        constant = constant_of(node, self._space)
        if constant is not None:
            kind = kinds.of(node)
            return context.get_constant(kind, constant), kind
        if isinstance(node, ast.Subscript):
            return self._element(node)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return self._call(OPERATORS[type(node.op)], [node.left, node.right])
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return builder.not_(self._condition(node.operand)), types.boolean
            return self._call(OPERATORS[type(node.op)], [node.operand])
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BoolOp):
            return self._junction(node)
        if isinstance(node, ast.IfExp):
            return self._choice(node)
        if isinstance(node, ast.Tuple):
            kind = kinds.of(node)
            words = [self._convert(element, types.int64) for element in node.elts]
            return context.make_tuple(builder, kind, words), kind
        if is_set(node):
            return self._call(set_kernels.new_set, [])
        if isinstance(node, ast.Call):
            function = kinds.function(node)
            if function is len:
                function = set_kernels.size
            if function in CASTS:
                return self._convert(node.args[0], CASTS[function]), CASTS[function]
            if function in PICKS:
                return self._pick(node, PICKS[function])
            return self._call(function, node.args)
        raise refuse_construct(node)

    def _call(self, function: Any, nodes: Sequence[ast.expr]) -> tuple[Any, Any]:
        return self._apply(function, [self._value(node) for node in nodes])

    def _apply(self, function: Any, arguments: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Call a function of numba, or a kernel."""
        context, builder = self._context, self._builder
        signature = self._kinds.signature(function, [kind for _, kind in arguments])
        values = [
            context.cast(builder, value, kind, wanted)
            for (value, kind), wanted in zip(arguments, signature.args, strict=True)
        ]
        implementation = self._kinds.implementation(context, function, signature)
        return implementation(builder, values), signature.return_type

    def _element(self, node: ast.Subscript) -> tuple[Any, Any]:
        context, builder = self._context, self._builder
        if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
            # This is array.shape[place].
            place = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if not isinstance(place, int):
                raise refuse_construct(node)
            return self._arrays[node.value.value.id][2][place], types.int64
        pointer, element = self._pointer(node)
        last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else None
        if not isinstance(last, ast.Slice):
            return context.unpack_value(builder, element, pointer), element
        if last.lower is not None or last.upper is None:
            raise refuse_construct(node)
        kind = self._kinds.of(node)
        row = context.make_array(kind)(context, builder)
        size = self._convert(last.upper, types.int64)
        item = ir.Constant(_INT64, context.get_abi_sizeof(context.get_data_type(element)))
        row.nitems, row.itemsize, row.data = size, item, pointer
        row.shape = cgutils.pack_array(builder, [size])
        row.strides = cgutils.pack_array(builder, [item])
        return row._getvalue(), kind

    def _pick(self, node: ast.Call, precedes: Any) -> tuple[Any, Any]:
        """Write the least or greatest argument; the first argument if several are equal."""
        kind = self._kinds.of(node)
        result, *others = (self._convert(argument, kind) for argument in node.args)
        for other in others:
            holds, _ = self._apply(precedes, [(other, kind), (result, kind)])
            result = self._builder.select(holds, other, result)
        return result, kind

    def _compare(self, node: ast.Compare) -> tuple[Any, Any]:
        """Write a comparison, or a chain of comparisons; operands have no side effects."""
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            holds, kind = self._call(set_kernels.contains, [*node.comparators, node.left])
            return self._builder.not_(holds) if isinstance(node.ops[0], ast.NotIn) else holds, kind
        operands = [self._value(part) for part in (node.left, *node.comparators)]
        result = None
        for sign, left, right in zip(node.ops, operands, operands[1:], strict=False):
            holds, _ = self._apply(OPERATORS[type(sign)], [left, right])
            result = holds if result is None else self._builder.and_(result, holds)
        return result, types.boolean

    def _junction(self, node: ast.BoolOp) -> tuple[Any, Any]:
        """Write ``and`` or ``or``, which skips operands once earlier operands decide the result."""
        builder = self._builder
        place = self._new_place(types.boolean, "holds")
        after = builder.append_basic_block("after")
        for number, part in enumerate(node.values, 1):
            holds = self._condition(part)
            builder.store(holds, place)
            if number == len(node.values):
                break
            further = builder.append_basic_block("further")
            blocks = (further, after) if isinstance(node.op, ast.And) else (after, further)
            builder.cbranch(holds, *blocks)
            builder.position_at_end(further)
        self._go(after)
        builder.position_at_end(after)
        return builder.load(place), types.boolean

    def _choice(self, node: ast.IfExp) -> tuple[Any, Any]:
        builder, kind = self._builder, self._kinds.of(node)
        place = self._new_place(kind, "chosen")
        yes, no, after = (builder.append_basic_block(name) for name in ("yes", "no", "after"))
        builder.cbranch(self._condition(node.test), yes, no)
        for block, part in ((yes, node.body), (no, node.orelse)):
            builder.position_at_end(block)
            builder.store(self._convert(part, kind), place)
            self._go(after)
        builder.position_at_end(after)
        return builder.load(place), kind
