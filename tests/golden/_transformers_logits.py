"""Write transformers_logits.json: what `transformers` computes for tiny models of every family.

Run by the peer's interpreter: .peers/transformers/bin/python tests/golden/_transformers_logits.py
Weights follow from the names of the tensors, so the file holds none: see tests/family_models.py,
which fills the same folders without `transformers`.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from family_models import drawn, write_folder  # noqa: E402

PROMPT = [(7 * place * place + 3 * place + 5) % 67 for place in range(40)]
POSITIONS = [0, 6, 7, 13, 23, 39]
NUM_GREEDY = 8

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 67,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.4],
    "long_factor": [1.0, 2.0, 5.0],
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = EXPERTS | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 0.7,
    "mscale_all_dim": 1.2,
    "beta_fast": 4,
    "beta_slow": 1,
}
FAMILIES = {
    "llama": {"rope_scaling": LLAMA3, "rope_theta": 500.0},
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 7},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-windows": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7, **CAPS},
    "gemma3_text": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 7,
        "sliding_window_pattern": 3,
        "rope_theta": 5000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "phi3": {"sliding_window": 7},
    "phi3-short": {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_scaling": LONG,
    },
    "phi3-long": {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 24,
        "rope_scaling": LONG,
    },
    "phi3-whole-long": {
        "original_max_position_embeddings": 24,
        "rope_scaling": LONG | {"short_factor": [1.0] * 4, "long_factor": [1.0, 1.5, 2.0, 5.0]},
    },
    "smollm3": {"no_rope_layer_interval": 2},
    "granite": {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 3.0,
    },
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": EXPERTS
    | {"num_experts": 5, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2},
    "qwen3_moe": EXPERTS | {"num_experts": 5, "norm_topk_prob": True, "head_dim": 16},
    "deepseek_v2": LATENT
    | {"n_routed_experts": 6, "n_shared_experts": 2, "q_lora_rank": 20, "rope_scaling": YARN}
    | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2}
    | {"routed_scaling_factor": 2.0, "first_k_dense_replace": 1},
    "deepseek_v2-lite": LATENT
    | {"n_routed_experts": 5, "n_shared_experts": 1, "q_lora_rank": None},
    "deepseek_v3": LATENT
    | {"n_routed_experts": 8, "n_shared_experts": 1, "q_lora_rank": 20, "n_group": 4}
    | {"topk_group": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
}


@torch.no_grad()
def family(name: str) -> dict:
    """Run a tiny model of a family."""
    config = transformers.AutoConfig.for_model(
        name.partition("-")[0], **(COMMON | FAMILIES[name]), attn_implementation="eager"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
        from safetensors import safe_open

        with safe_open(path / "model.safetensors", "pt") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
        entry = {
            "config": json.loads((path / "config.json").read_text()),
            "shapes": shapes,
            "gain": 0.0 if name.startswith("gemma") else 1.0,
        }
        write_folder(entry, path)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="eager", dtype=torch.float32
        ).eval()
        held = dict(model.named_parameters())
        assert all(
            torch.equal(held[key], torch.from_numpy(drawn(key, shape, entry["gain"])))
            for key, shape in shapes.items()
            if key in held
        )
        logits = model(torch.tensor([PROMPT])).logits[0]
        tokens, greedy, last = list(PROMPT), [], []
        for _ in range(NUM_GREEDY):
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            first, second = row.topk(2).values.tolist()
            assert first - second > 1e-3, (name, first - second)
            greedy.append(int(row.argmax()))
            tokens.append(greedy[-1])
            last = [round(value, 6) for value in row.tolist()]
    spread = logits.std().item()
    sys.stderr.write(f"{name}: {len(shapes)} tensors, logits spread {spread:.2f}, {greedy}\n")
    entry["config"].pop("transformers_version", None)
    rows = [[round(value, 6) for value in logits[place].tolist()] for place in POSITIONS]
    return entry | {"logits": rows, "greedy": greedy, "last": last}


def main() -> None:
    """Write all families."""
    warnings.simplefilter("ignore")
    found = {
        "source": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "prompt": PROMPT,
        "positions": POSITIONS,
        "families": {name: family(name) for name in FAMILIES},
    }
    (HERE / "transformers_logits.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
