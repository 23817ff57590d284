//! `tokenizer_class`: whether transformers runs a checkpoint's tokenizer.json as it is.
//!
//! It does for its own backend and for every name that it does not know. Under the names below it has classes of its
//! own, which put a pre-tokenizer, a normalizer and a decoder of theirs in the place of the file's: the same file, other
//! ids. Such a checkpoint is refused.

use serde_json::Value;

/// Names in transformers 5.24.0, without `Tokenizer` or `TokenizerFast` behind them, whose tokenizers are put together by the
/// class.
pub const BUILT_BY_CLASS: &str = "Albert Bart Barthez Bartpho Basic BertGeneration BertJapanese Bert Bertweet BigBird BioGpt \
    BlenderbotSmall Blenderbot ByT5 CLIP CTRL Camembert Canine Character Clvp CodeGen CodeLlama Cohere \
    ConvBert CpmAnt Cpm DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm \
    Esmc FNet FSMT FastSpeech2Conformer Flaubert Funnel GPT2 GPTNeoXJapanese GPTNeoX GPTSw3 Gemma Herbert \
    LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke Lxmert M2M100 MBart50 MBart MLuke MPNet Marian MarkupLM \
    Mecab Mgpstr MobileBert Mvp MyT5 Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert \
    Pop2Piano ProphetNet Qwen2 Qwen3_5 Rag Reformer RemBert RoCBert RoFormer Roberta SeamlessM4T Siglip2 \
    Siglip Speech2Text SpeechT5 Splinter SqueezeBert T5 Tapas Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC \
    Wav2Vec2PhonemeCTC Whisper Wordpiece XGLM XLMRoberta XLM XLNet";

/// A class that is put together as those above, unless the file is byte-level: Llama 3 has this name too.
const LLAMA: &str = "Llama";

/// Whether this is one of the names of the backend itself.
pub fn is_plain(class: &str) -> bool {
    matches!(
        class,
        "PreTrainedTokenizerFast" | "PreTrainedTokenizer" | "TokenizersBackend"
    )
}

/// `class` is a checkpoint's `tokenizer_class`; `byte_level`: see [`has_byte_level`].
pub fn check(class: &str, byte_level: bool) -> Result<(), String> {
    let base = class.strip_suffix("Fast").unwrap_or(class);
    let by_class = base.strip_suffix("Tokenizer").is_some_and(|name| {
        BUILT_BY_CLASS.split(' ').any(|built| built == name) || (name == LLAMA && !byte_level)
    });
    match by_class {
        false => Ok(()),
        true => Err(format!(
            "field `tokenizer_class`: found {class:?}, a class that puts parts of its own in the place of tokenizer.json's, expected \"PreTrainedTokenizerFast\" or \"TokenizersBackend\": load the tokenizer with transformers and save it under one of these"
        )),
    }
}

/// Whether the word ByteLevel is anywhere in tokenizer.json: transformers looks no closer.
pub fn has_byte_level(json: &Value) -> bool {
    match json {
        Value::String(text) => text == "ByteLevel",
        Value::Array(items) => items.iter().any(has_byte_level),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name == "ByteLevel" || has_byte_level(value)),
        _ => false,
    }
}
