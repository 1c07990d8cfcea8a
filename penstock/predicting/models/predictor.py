"""A predictor: the models of a database's procedures for one placement of its tables (H-Store §5.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.conf.arguments import check_keywords
from penstock.designing.traces.queries import QueryName
from penstock.errors import InvalidUsageError
from penstock.predicting.models.estimates import Walker
from penstock.predicting.models.features import Category, Feature, Tree, read_features
from penstock.predicting.models.markov import MarkovModel
from penstock.predicting.models.parameters import Bound, Limit, Parameters, Source
from penstock.predicting.models.runtime import RunningPredictor
from penstock.procedures.partitions.placement import Placement
from penstock.procedures.partitions.stored_text import StoredText
from penstock.procedures.schema import Column
from penstock.procedures.texts import Numbers

__all__ = ["Predictor", "ProcedureModels", "describe_placements"]

_VERSION = 2
_HINT = "penstock predict writes such a file"


@dataclass
class ProcedureModels:
    """The models of one procedure.

    Attributes
    ----------
    procedure : str
        The procedure's name.
    kind : tuple of str and object, optional
        The name of an attribute, and a value, if the models are only for transactions whose attribute has
        this value.
    digest : str
        The digest of the procedure's program.
    names : tuple of QueryName
        The names of the procedure's queries.
    sources : tuple of Source
        The parameter mapping: the sources of the queries' keys.
    base : str or None
        The base attribute, which determines the partitions of most queries.
    features : tuple of Feature
        The features from which `tree` chooses a model; empty if there is one model.
    tree : Tree
        The decision tree.
    models : list of MarkovModel
        The models.
    bounds : tuple of Bound
        Limits of how often queries are executed, which depend on the event.
    """

    procedure: str
    kind: tuple[str, Any] | None
    digest: str
    names: tuple[QueryName, ...]
    sources: tuple[Source, ...]
    base: str | None
    features: tuple[Feature, ...]
    tree: Tree
    models: list[MarkovModel]
    bounds: tuple[Bound, ...] = ()

    @property
    def title(self) -> str:
        """The procedure's name, followed by the value in `kind`."""
        return self.procedure if self.kind is None else f"{self.procedure} {self.kind[1]}"

    @property
    def writes(self) -> list[bool]:
        """For each query name, whether its queries write."""
        return [name.writes for name in self.names]

    def parameters(
        self, event: Sequence[Column], placements: Mapping[str, Placement], partitions: int
    ) -> Parameters:
        """Return an object that computes the partitions of the procedure's queries from events."""
        return Parameters(self.names, self.sources, event, placements, partitions, self.bounds)

    def choose(self, events: pa.RecordBatch, event: Sequence[Column], partitions: int) -> Numbers:
        """Return the number of the model of each event."""
        if not self.features:
            return np.zeros(events.num_rows, np.int64)
        return self.tree.choose(read_features(self.features, events, event, self.base, partitions))

    def walker(self, parameters: Parameters, threshold: float) -> Walker:
        """Return a `Walker` for the current models."""
        return Walker(self.models, self.writes, parameters, threshold)

    def to_json(self) -> dict[str, Any]:
        """Return the models as values that JSON can hold."""
        return {
            "procedure": self.procedure,
            "kind": None if self.kind is None else list(self.kind),
            "digest": self.digest,
            "queries": [[name.verb, name.table, list(name.columns)] for name in self.names],
            "sources": [
                [
                    one.query,
                    one.column,
                    one.attribute,
                    one.counter,
                    one.coefficient,
                    one.is_exact,
                    one.is_digits,
                ]
                for one in self.sources
            ],
            "bounds": [list(bound) for bound in self.bounds],
            "base": self.base,
            "features": [list(feature) for feature in self.features],
            "tree": [self.tree.feature, self.tree.bound, self.tree.left, self.tree.right, self.tree.model],
            "models": [model.to_json() for model in self.models],
        }

    @staticmethod
    def from_json(content: Mapping[str, Any], partitions: int) -> ProcedureModels:
        """Make the models from the result of `to_json`."""
        names = tuple(QueryName(verb, table, tuple(columns)) for verb, table, columns in content["queries"])
        writes = [name.writes for name in names]
        return ProcedureModels(
            content["procedure"],
            None if content["kind"] is None else (content["kind"][0], content["kind"][1]),
            content["digest"],
            names,
            tuple(Source(*one) for one in content["sources"]),
            content["base"],
            tuple(Feature(Category(category), attribute) for category, attribute in content["features"]),
            Tree(*map(tuple, content["tree"])),
            [MarkovModel.from_json(model, partitions, writes) for model in content["models"]],
            tuple(Bound(query, name, Limit(limit), is_reached) for query, name, limit, is_reached in
                  content["bounds"]),
        )  # fmt: skip


@check_keywords
@dataclass
class Predictor(StoredText):
    """The models of a database's procedures; pass a predictor or its file to `Database.open`.

    Attributes
    ----------
    database : str
        The name of the database.
    partitions : int
        The number of partitions.
    placements : mapping
        For each partitioned table, the partitioning column and the ranges; None instead of ranges if the hash
        decides.
    threshold : float
        The lowest probability at which a prediction is used.
    procedures : list of ProcedureModels
        The models of each procedure.
    """

    database: str
    partitions: int
    placements: Mapping[str, tuple[str, tuple[Any, ...] | None]]
    threshold: float
    procedures: list[ProcedureModels]
    _KIND = "a predictor"

    def bind(self, database: str, partitions: int, placements: Mapping[str, Placement]) -> RunningPredictor:
        """Return the predictor of an open database.

        Raises
        ------
        InvalidUsageError
            If the models belong to a different database, or are for different partitions.
        """
        if database != self.database:
            raise InvalidUsageError(
                "the predictor is of another database", database=database, predictor=self.database
            )
        now = describe_placements(placements)
        if partitions != self.partitions or now != dict(self.placements):
            raise InvalidUsageError(
                "the predictor is for other partitions",
                partitions=partitions,
                predictor=self.partitions,
                tables=sorted(
                    name
                    for name in now.keys() | self.placements
                    if now.get(name) != self.placements.get(name)
                ),
                hint="train it again: penstock predict with these partitions",
            )
        return RunningPredictor(self, placements)

    def to_json(self) -> str:
        """Return the text that `parse` reads."""
        return json.dumps({
            "version": _VERSION,
            "database": self.database,
            "partitions": self.partitions,
            "tables": {name: [column, ranges] for name, (column, ranges) in self.placements.items()},
            "threshold": self.threshold,
            "procedures": [models.to_json() for models in self.procedures],
        })  # fmt: skip

    @classmethod
    def parse(cls, text: str, file: str = "<text>") -> Predictor:
        """Return the predictor that a text describes; see `load`."""
        try:
            content = json.loads(text)
            version = content["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidUsageError("this is no predictor", file=file, hint=_HINT) from error
        if version != _VERSION:
            raise InvalidUsageError(
                "the predictor has another version", file=file, version=version, known=_VERSION, hint=_HINT
            )
        try:
            partitions = content["partitions"]
            return Predictor(
                content["database"],
                partitions,
                {
                    name: (column, None if ranges is None else tuple(ranges))
                    for name, (column, ranges) in content["tables"].items()
                },
                content["threshold"],
                [ProcedureModels.from_json(one, partitions) for one in content["procedures"]],
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InvalidUsageError("a predictor is damaged", file=file, reason=repr(error)) from error


def describe_placements(placements: Mapping[str, Placement]) -> dict[str, tuple[str, tuple[Any, ...] | None]]:
    """Return the column and the ranges of each placement."""
    return {name: (" and ".join(one.names), one.ranges) for name, one in placements.items()}
