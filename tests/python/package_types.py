"""What values have beside the fields of the openai package's types."""
from pydantic import BaseModel


def extras(value, path=""):
    """Paths of fields that the package's types do not have."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from extras(item, path + "[]")
