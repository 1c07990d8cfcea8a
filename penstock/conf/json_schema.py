"""The JSON Schema of a pipeline's file, for editors."""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from penstock.conf.pipeline import Pipeline

__all__ = ["pipeline_schema"]

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{.+\}"}
"""The form of a variable, which may stand for a number or a flag, too."""


def pipeline_schema() -> dict[str, Any]:
    """Return the schema of a pipeline's file."""
    schema = Pipeline.model_json_schema(by_alias=True, schema_generator=_PipelineSchema)
    return {"$schema": _PipelineSchema.schema_dialect, **schema, "title": "A pipeline of Penstock"}


class _PipelineSchema(GenerateJsonSchema):
    """Pydantic's schema without titles, in which variables may stand for numbers and flags."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"anyOf": [super().int_schema(schema), _VARIABLE]}

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), _VARIABLE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), _VARIABLE]}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
