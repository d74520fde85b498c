// Keys and values of one layer in the block pool, and how they are stored.
#pragma once

#include "rows.h"

// A key or value in eight bits. A head's block then holds codes [block, width] and, behind them,
// one float32 scale per token.
struct int8 {
    int8_t code;
};

// Types of keys and values, as `Model` and callers name them.
constexpr int64_t KV_FP32 = 0, KV_BF16 = 1, KV_INT8 = 2;

// Calls body(pointer to the type's numbers).
template <class Body>
INLINE void with_type(int64_t kind, const void* numbers, const Body& body) {
    if (kind == KV_BF16) body((const bf16*)numbers);
    else if (kind == KV_INT8) body((const int8*)numbers);
    else body((const float*)numbers);
}

INLINE f8 load(const int8* p) {
    typedef int8_t b8 __attribute__((vector_size(8), aligned(1), may_alias));
    return __builtin_convertvector(*(const b8*)p, f8);
}

template <class T>
constexpr bool is_coded = sizeof(T) == 1;

// Numbers of a head's block, with its scales.
template <class T>
INLINE long head_numbers(long block_size, long width) {
    return block_size * (width + (is_coded<T> ? (long)sizeof(float) : 0));
}

// What attention reads: one layer's keys and values, who reads which blocks, and how.
template <class T>
struct Paged {
    const T *keys, *values;
    long kv_heads, group, width, block_size;
    const int64_t* tables;
    long table_row;
    float scale;          // of queries
    float softcap = 0;    // c of scores c tanh(score / c); 0 for none
    long window = 0;      // last tokens of a context that a row attends; 0 for all

    // Numbers of a head's block.
    long block_numbers() const { return head_numbers<T>(block_size, width); }
    // Where a token's numbers begin.
    long place(const int64_t* table, long head, long token) const {
        return block(table, head, token) + token % block_size * width;
    }
    long block(const int64_t* table, long head, long token) const {
        return (table[token / block_size] * kv_heads + head) * block_numbers();
    }
    // The scale of a token, in eight bits.
    const float* scale_of(const T* numbers, const int64_t* table, long head, long token) const {
        return (const float*)(numbers + block(table, head, token) + block_size * width)
            + token % block_size;
    }
};

// Stores a token in a head's block.
INLINE void put_token(float* block, long, long width, long token, const float* x) {
    memcpy(block + token * width, x, width * sizeof(float));
}
INLINE void put_token(bf16* block, long, long width, long token, const float* x) {
    for (long i = 0; i < width; i++) put(block + token * width + i, x[i]);
}
INLINE void put_token(int8* block, long block_size, long width, long token, const float* x) {
    float* scales = (float*)(block + block_size * width);
    scales[token] = to_bytes(x, width, (int8_t*)(block + token * width));
}
