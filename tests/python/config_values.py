"""What transformers makes of configurations.

Standard input: {"configs": [config.json, ...], "generation": [generation_config.json, ...]}. Standard output:
{"configs": [{"rope_theta", "rope_type", "eos_token_id", "tied"}, or null where it refuses], "generation": [true, or
false where it refuses]}.
"""

from question import answer
from transformers import GenerationConfig, Lfm2MoeConfig


def config(values):
    try:
        read = Lfm2MoeConfig.from_dict(values)
    except Exception:
        return None
    rope = read.rope_parameters
    return {
        "rope_theta": rope["rope_theta"],
        "rope_type": rope["rope_type"],
        "eos_token_id": read.eos_token_id,
        "tied": read.tie_word_embeddings,
    }


def generation(values):
    try:
        GenerationConfig(**values)
    except ValueError:
        return False
    return True


answer(
    lambda asked: {
        "configs": [config(values) for values in asked["configs"]],
        "generation": [generation(values) for values in asked["generation"]],
    }
)
