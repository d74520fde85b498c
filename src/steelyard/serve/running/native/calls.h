// What is called of teams and products alone; the step's own calls are in step.cpp.
#pragma once

#include "products.h"

extern "C" {

// Threads that the calls share; one call at a time.
void* steelyard_team(int64_t threads) { return new Team((int)threads); }
void steelyard_disband(void* team) { delete (Team*)team; }

// Bytes that `steelyard_pack` writes.
int64_t steelyard_packed_bytes(int64_t kind, int64_t outputs, int64_t inputs) {
    return panels_of(outputs) * lines_of(kind, inputs) * LINE;
}

// Lays a weight [outputs, inputs] out as the products read it.
void steelyard_pack(int64_t kind, const void* weights, int64_t outputs, int64_t inputs,
    void* packed) {
    pack(kind, weights, outputs, inputs, (uint8_t*)packed);
}

// Words that the tiles of a step take.
int64_t steelyard_tile_words(int64_t rows, int64_t inputs) { return tile_words(rows, inputs); }

void steelyard_linear(void* team, const float* x, int64_t x_row, int64_t rows, const Linear* map,
    float* out, int64_t out_row, int64_t add, int32_t* tiles) {
    ((Team*)team)->run([&] {
        product(*(Team*)team, x, x_row, rows, *map, out, out_row, add != 0, tiles);
    });
}

// What the products are compiled for: 3 AVX-512 with VNNI and bfloat16, 2 without bfloat16, 1
// AVX2, 0 none of these.
int64_t steelyard_level() {
#if defined(STEELYARD_BF16)
    return 3;
#elif defined(STEELYARD_WIDE)
    return 2;
#elif STEELYARD_CAP >= 1 && defined(__AVX2__)
    return 1;
#else
    return 0;
#endif
}
}
