"""How byte-level vocabularies of GGUF files cut text into words before merging."""

from dataclasses import dataclass

__all__ = ["SPLITTERS", "Splitter"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}"
_QWEN2 = rf"{_ENGLISH}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}"
# Words whose case changes once at most: capitals, then small letters, or capitals alone.
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (f"{_HEAD}{_UPPER}*{_LOWER}+", f"{_HEAD}{_UPPER}+{_LOWER}*")
_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDS}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_MARKS}"
_GPT4O = rf"{_CASED[0]}{_ENGLISH}?|{_CASED[1]}{_ENGLISH}?|\p{{N}}{{1,3}}|{_MARKS}"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_ENDS}",
)
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9][0-9][0-9]",
)


@dataclass(frozen=True, slots=True)
class Splitter:
    """One way to cut text into words.

    Attributes:
        patterns: regular expressions; each cuts the pieces that those before it left.
        keeps_whole: whether a word that is a token itself is not merged from its letters.
        adds_bos: whether prompts begin with the token of beginnings unless the file says otherwise.
        composes: whether text is brought into Unicode's composed form first.
    """

    patterns: tuple[str, ...]
    keeps_whole: bool = False
    adds_bos: bool = False
    composes: bool = False


_FAMILIES = {
    ("default", ""): Splitter(_DEFAULT),
    ("gpt-2", "phi-2", "mpt", "olmo", "a.x-4.0", "mellum", "exaone4"): Splitter((_GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"): Splitter(
        (r"\p{N}", _GPT2)
    ),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"): Splitter(
        (_LLAMA3,), keeps_whole=True, adds_bos=True
    ),
    ("smaug-bpe", "dbrx"): Splitter((_LLAMA3,)),
    ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"): Splitter((_QWEN2,), composes=True),
    ("deepseek-v3",): Splitter(_DEEPSEEK_V3),
    ("tekken",): Splitter((_TEKKEN,), keeps_whole=True, adds_bos=True),
    ("gpt-4o", "llama4"): Splitter((_GPT4O,)),
}

SPLITTERS = {name: splitter for names, splitter in _FAMILIES.items() for name in names}
"""Ways to cut by the value of `tokenizer.ggml.pre`; empty where a file has none.

Source: `llm_tokenizer_bpe` of llama.cpp (github.com/ggml-org/llama.cpp, src/llama-vocab.cpp), with
the expressions of the models' own `tokenizer.json` where it rewrites them."""
