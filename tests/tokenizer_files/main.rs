//! Tokenizers of checkpoints against `AutoTokenizer` of transformers (tests/python/auto_tokenizer.py): ids of mixed
//! texts and texts of random ids, over published tokenizers, those of the goldens and of `synth`, and made-up ones that
//! spell their special tokens in every way.

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod checkpoint;
mod made_up;
mod published;
mod template_variables;
mod texts;
