"""Names of tokenizer classes that transformers builds in its own way rather than from tokenizer.json, without `Fast`."""
import transformers
from question import answer
from transformers.models.auto import tokenization_auto


def built_otherwise(_):
    names = {name for name in tokenization_auto.TOKENIZER_MAPPING_NAMES.values() if name}
    names |= {name for name in dir(transformers) if name.endswith(("Tokenizer", "TokenizerFast"))}
    built = set()
    for name in names:
        found = tokenization_auto.tokenizer_class_from_name(name)
        if found is not None and found.__name__ not in ("TokenizersBackend", "PythonBackend"):
            built.add(name.removesuffix("Fast"))
    return sorted(built - {"AutoTokenizer"})


answer(built_otherwise)
