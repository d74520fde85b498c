"""Writes a Hugging Face folder in OpenVINO's format.

Usage: python _race_export.py MODEL FOLDER fp32|bf16|int8|int4, in the environment of the peer
`openvino`. int4 has groups of 32 as the other engines' formats.
"""

import sys

from optimum import intel  # pyright: ignore[reportMissingImports]

BITS = {"int8": {"bits": 8, "sym": True}, "int4": {"bits": 4, "sym": True, "group_size": 32}}


def main():
    """Convert, and round to nearest where bits are given."""
    source, target, kind = sys.argv[1:]
    chosen = BITS.get(kind)
    model = intel.OVModelForCausalLM.from_pretrained(
        source,
        export=True,
        compile=False,
        load_in_8bit=None if chosen else False,
        quantization_config=chosen and intel.OVWeightQuantizationConfig(**chosen),
    )
    model.save_pretrained(target)


if __name__ == "__main__":
    main()
