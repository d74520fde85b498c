// Keys and values of one layer in the block pool: how they are stored, and who reads them how.
#pragma once

#include "rows.h"

// A key or value in eight bits. A head's block then holds codes [block, width] and, behind them,
// one float32 scale per token.
struct int8 {
    int8_t code;
};

INLINE f8 load(const int8* p) {
    typedef int8_t b8 __attribute__((vector_size(8), aligned(1), may_alias));
    return __builtin_convertvector(*(const b8*)p, f8);
}

template <class T>
constexpr bool is_coded = sizeof(T) == 1;

// Types of keys and values, as callers name them.
constexpr int64_t KV_FP32 = 0, KV_BF16 = 1, KV_INT8 = 2;

// The one of a type.
template <class T>
constexpr int64_t KV_KIND = is_coded<T> ? KV_INT8 : (sizeof(T) == sizeof(bf16) ? KV_BF16 : KV_FP32);

// Whether attention may run in registers of 16 words, and whether it does for a type: bfloat16 needs
// its products.
#if defined(STEELYARD_WIDE)
constexpr bool TILED = true;
#else
constexpr bool TILED = false;
#endif
constexpr bool is_tiled(int64_t kind) {
#if defined(STEELYARD_BF16)
    return TILED;
#else
    return TILED && kind != KV_BF16;
#endif
}

// Calls body(a number of the type).
template <class Body>
INLINE void with_type(int64_t kind, const Body& body) {
    if (kind == KV_BF16) body(bf16());
    else if (kind == KV_INT8) body(int8());
    else body(float());
}

// Bytes of one head's block.
INLINE long head_bytes(int64_t kind, long block_size, long width) {
    if (kind == KV_INT8) return block_size * (width + (long)sizeof(float));
    return block_size * width * (kind == KV_BF16 ? sizeof(bf16) : sizeof(float));
}

// What attention reads in one layer.
struct View {
    int64_t kind;
    const void *keys, *values;
    long kv_heads, group, width, block_size;
    const int64_t* tables;
    long table_row;
    float scale;    // of queries
    float softcap;  // c of scores c tanh(score / c); 0 for none
    long window;    // last tokens of a context that a row attends; 0 for all
};

// A view as numbers of its type.
template <class T>
struct Paged {
    const View& view;
    const T *keys, *values;

    explicit Paged(const View& v) : view(v), keys((const T*)v.keys), values((const T*)v.values) {}

    // Where a token's numbers begin.
    long place(const int64_t* table, long head, long token) const {
        return block(table, head, token) + token % view.block_size * view.width;
    }
    // The scale of a token, in eight bits.
    const float* scale_of(const T* numbers, const int64_t* table, long head, long token) const {
        const T* codes = numbers + block(table, head, token);
        return (const float*)(codes + view.block_size * view.width) + token % view.block_size;
    }
    // Where a head's block begins that holds a token.
    long block(const int64_t* table, long head, long token) const {
        return (table[token / view.block_size] * view.kv_heads + head) * head_numbers();
    }
    // Numbers of a head's block.
    long head_numbers() const {
        return head_bytes(view.kind, view.block_size, view.width) / (long)sizeof(T);
    }
};

// Stores a token in a head's block.
INLINE void put_token(int64_t kind, void* block, long block_size, long width, long token,
    const float* x) {
    if (kind == KV_INT8) {
        int8_t* codes = (int8_t*)block + token * width;
        const float most = largest(x, width), inverse = most > 0 ? 127.0f / most : 0.0f;
        for (long i = 0; i < width; i++) codes[i] = (int8_t)(int32_t)std::rint(x[i] * inverse);
        ((float*)((int8_t*)block + block_size * width))[token] = most / 127.0f;
    } else if (kind == KV_BF16) {
        for (long i = 0; i < width; i++) put((bf16*)block + token * width + i, x[i]);
    } else {
        memcpy((float*)block + token * width, x, width * sizeof(float));
    }
}
