//! `tokenizer_class`: whether transformers runs a checkpoint's tokenizer.json as it is.
//!
//! It does so for its own backend and for every name that it does not know. For the names below it has classes, which put
//! their own pre-tokenizer, normalizer and decoder in the place of the file's, so that a text has other ids. A checkpoint
//! with such a name is refused.

use serde_json::Value;

/// The classes of transformers 5.24.0 that put together their tokenizers, without `Tokenizer` or `TokenizerFast` behind the
/// names.
pub const BUILT_BY_CLASS: &str = "Albert Bart Barthez Bartpho Basic BertGeneration BertJapanese Bert Bertweet BigBird BioGpt \
    BlenderbotSmall Blenderbot ByT5 CLIP CTRL Camembert Canine Character Clvp CodeGen CodeLlama Cohere \
    ConvBert CpmAnt Cpm DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm \
    Esmc FNet FSMT FastSpeech2Conformer Flaubert Funnel GPT2 GPTNeoXJapanese GPTNeoX GPTSw3 Gemma Herbert \
    LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke Lxmert M2M100 MBart50 MBart MLuke MPNet Marian MarkupLM \
    Mecab Mgpstr MobileBert Mvp MyT5 Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert \
    Pop2Piano ProphetNet Qwen2 Qwen3_5 Rag Reformer RemBert RoCBert RoFormer Roberta SeamlessM4T Siglip2 \
    Siglip Speech2Text SpeechT5 Splinter SqueezeBert T5 Tapas Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC \
    Wav2Vec2PhonemeCTC Whisper Wordpiece XGLM XLMRoberta XLM XLNet";

/// A class that puts together its tokenizer unless the file is byte-level, which Llama 3's is.
const LLAMA: &str = "Llama";

/// Whether this is a name of transformers' backend itself, which runs tokenizer.json as it is.
pub fn is_plain(class: &str) -> bool {
    matches!(
        class,
        "PreTrainedTokenizerFast" | "PreTrainedTokenizer" | "TokenizersBackend"
    )
}

/// Checks a checkpoint's `tokenizer_class`. `byte_level` is what [`has_byte_level`] says of its tokenizer.json.
///
/// # Errors
/// transformers does not run tokenizer.json as it is under this name.
pub fn check(class: &str, byte_level: bool) -> Result<(), String> {
    let base = class.strip_suffix("Fast").unwrap_or(class);
    let by_class = base.strip_suffix("Tokenizer").is_some_and(|name| {
        BUILT_BY_CLASS.split(' ').any(|built| built == name) || (name == LLAMA && !byte_level)
    });
    if by_class {
        return Err(format!(
            "field `tokenizer_class`: found {class:?}, a class that puts parts of its own in the place of tokenizer.json's, expected \"PreTrainedTokenizerFast\" or \"TokenizersBackend\": load the tokenizer with transformers and save it under one of these"
        ));
    }
    Ok(())
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
