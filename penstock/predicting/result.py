"""The result of training: a predictor, its accuracy, and an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.predicting.accuracy import Accuracy
from penstock.predicting.drawing import draw
from penstock.predicting.models.parameters import ANY_COUNTER, Bound, Limit, Source
from penstock.predicting.models.predictor import Predictor, ProcedureModels

__all__ = ["PredictionResult"]

_OPTIMIZATIONS = {"base": "OP1", "partitions": "OP2", "undo": "OP3", "finish": "OP4", "total": "all"}
_MAX_SOURCES = 20


class PredictionResult:
    """A predictor, and the accuracy of models that learn from half of the trace and are tested on the rest.

    Attributes
    ----------
    predictor : Predictor
        The predictor, which `Database.open` takes.
    accuracy : mapping of str to Accuracy
        The accuracy for each procedure.
    total : Accuracy
        The accuracy for all transactions.
    """

    def __init__(self, predictor: Predictor, accuracy: Mapping[str, Accuracy]) -> None:
        self.predictor, self.accuracy = predictor, dict(accuracy)
        self.total = Accuracy()
        for one in accuracy.values():
            self.total.merge(one)

    def to_json(self) -> str:
        """Return the text of the predictor's file."""
        return self.predictor.to_json()

    def to_svg(self, procedure: str) -> str:
        """Draw the model that most transactions of a procedure use, as SVG.

        Raises
        ------
        InvalidUsageError
            If the predictor does not have the procedure.
        """
        return draw(self.predictor, procedure)

    def explain(self) -> str:
        """Describe the models, the mapping of parameters, and the accuracy."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        predictor = self.predictor
        yield f"predictor of {predictor.database} for {predictor.partitions} partitions"
        for models in predictor.procedures:
            yield from self._procedure_lines(models, self.accuracy[models.title])
        if len(predictor.procedures) > 1:
            yield f"all procedures: {_describe(self.total)}"

    def _procedure_lines(self, models: ProcedureModels, accuracy: Accuracy) -> Iterator[str]:
        count = len(models.models)
        states = sum(len(model) - 3 for model in models.models)
        chosen = f", by {' and '.join(map(str, models.features))}" if models.features else ""
        yield f"  {models.title}: {count} model{'s' if count > 1 else ''}{chosen}, {states} states"
        yield f"    {_describe(accuracy)}"
        lines = [*_source_lines(models.names, models.sources), *_bound_lines(models.names, models.bounds)]
        yield from lines[:_MAX_SOURCES]
        if len(lines) > _MAX_SOURCES:
            yield f"    and {len(lines) - _MAX_SOURCES} more"


def _source_lines(names: Sequence[object], sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        number = "" if source.counter == ANY_COUNTER else f" number {source.counter + 1}"
        how = "the compiler knows" if source.is_exact else f"in {source.coefficient:.1%} of the trace"
        digits = "the digits of " if source.is_digits else ""
        yield f"    {names[source.query]}{number}: {source.column} is {digits}e.{source.attribute}, {how}"


def _bound_lines(names: Sequence[object], bounds: Sequence[Bound]) -> Iterator[str]:
    for bound in bounds:
        if bound.limit is Limit.LENGTH:
            most = "" if bound.is_reached else "at most "
            yield f"    {names[bound.query]}: {most}once for each element of e.{bound.attribute}"
        elif bound.limit is not Limit.LAST:
            state = "is null" if bound.limit is Limit.NULL else "has a value"
            yield f"    {names[bound.query]}: not if e.{bound.attribute} {state}"


def _describe(accuracy: Accuracy) -> str:
    shares = ", ".join(f"{short} {accuracy.share(name):.1%}" for name, short in _OPTIMIZATIONS.items())
    return f"right for {accuracy.transactions:,} transactions: {shares}"
