//! `tokenizer_class`: whether transformers runs a checkpoint's tokenizer.json as it is.
//!
//! It does for its own backend and for every name that it does not know. Under the names below it has classes of its
//! own, which put a pre-tokenizer, a normalizer and a decoder of theirs in the place of the file's: the same file, other
//! ids. Such a checkpoint is refused.

use serde_json::Value;

/// Names in transformers 5.24.0, with or without `Fast` behind them, whose tokenizers are put together by the class.
pub const BUILT_BY_CLASS: &[&str] = &[
    "AlbertTokenizer",
    "BartTokenizer",
    "BarthezTokenizer",
    "BartphoTokenizer",
    "BasicTokenizer",
    "BertGenerationTokenizer",
    "BertJapaneseTokenizer",
    "BertTokenizer",
    "BertweetTokenizer",
    "BigBirdTokenizer",
    "BioGptTokenizer",
    "BlenderbotSmallTokenizer",
    "BlenderbotTokenizer",
    "ByT5Tokenizer",
    "CLIPTokenizer",
    "CTRLTokenizer",
    "CamembertTokenizer",
    "CanineTokenizer",
    "CharacterTokenizer",
    "ClvpTokenizer",
    "CodeGenTokenizer",
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "ConvBertTokenizer",
    "CpmAntTokenizer",
    "CpmTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "DiaTokenizer",
    "DistilBertTokenizer",
    "EsmTokenizer",
    "EsmcTokenizer",
    "FNetTokenizer",
    "FSMTTokenizer",
    "FastSpeech2ConformerTokenizer",
    "FlaubertTokenizer",
    "FunnelTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXJapaneseTokenizer",
    "GPTNeoXTokenizer",
    "GPTSw3Tokenizer",
    "GemmaTokenizer",
    "HerbertTokenizer",
    "LEDTokenizer",
    "LasrTokenizer",
    "LayoutLMv2Tokenizer",
    "LayoutLMv3Tokenizer",
    "LayoutXLMTokenizer",
    "LukeTokenizer",
    "LxmertTokenizer",
    "M2M100Tokenizer",
    "MBart50Tokenizer",
    "MBartTokenizer",
    "MLukeTokenizer",
    "MPNetTokenizer",
    "MarianTokenizer",
    "MarkupLMTokenizer",
    "MecabTokenizer",
    "MgpstrTokenizer",
    "MobileBertTokenizer",
    "MvpTokenizer",
    "MyT5Tokenizer",
    "NllbTokenizer",
    "NougatTokenizer",
    "OpenAIGPTTokenizer",
    "PLBartTokenizer",
    "ParakeetTokenizer",
    "PegasusTokenizer",
    "PerceiverTokenizer",
    "PhobertTokenizer",
    "Pop2PianoTokenizer",
    "ProphetNetTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
    "RagTokenizer",
    "ReformerTokenizer",
    "RemBertTokenizer",
    "RoCBertTokenizer",
    "RoFormerTokenizer",
    "RobertaTokenizer",
    "SeamlessM4TTokenizer",
    "Siglip2Tokenizer",
    "SiglipTokenizer",
    "Speech2TextTokenizer",
    "SpeechT5Tokenizer",
    "SplinterTokenizer",
    "SqueezeBertTokenizer",
    "T5Tokenizer",
    "TapasTokenizer",
    "Tipsv2Tokenizer",
    "UdopTokenizer",
    "VideoPrismTokenizer",
    "VitsTokenizer",
    "Wav2Vec2CTCTokenizer",
    "Wav2Vec2PhonemeCTCTokenizer",
    "WhisperTokenizer",
    "WordpieceTokenizer",
    "XGLMTokenizer",
    "XLMRobertaTokenizer",
    "XLMTokenizer",
    "XLNetTokenizer",
];

/// A class that is put together as those above, unless the file is byte-level: Llama 3 has this name too.
const LLAMA: &str = "LlamaTokenizer";

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
    let by_class = BUILT_BY_CLASS.contains(&base) || (base == LLAMA && !byte_level);
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
