// A packed weight matrix: what it holds, and how its bytes lie.
//
// A line of 64 bytes has 16 columns side by side, each with as many weights that follow each other
// along the inner axis as fill 32 bits: 1 float32, 2 bfloat16, 4 bytes or 8 nibbles. Of float16 all
// columns' first weights stand before their second ones, to be widened at once. The lines of a panel follow each other, and so do panels; kinds whose sums are kept in float32 are cut into
// pieces of DEPTH lines first, so that a piece of the activations stays in the first-level cache.
#pragma once

#include "panels.h"

enum Kind : int64_t { FP32, BF16, INT8, INT4, BLOCK8, BLOCK4, FP16 };

struct Linear {
    const void* packed;
    const void* scales;    // INT8: float [columns]; INT4: binary16 [panel][group][16]; see `side_bytes`
    const uint8_t* zeros;  // INT4: codes that stand for 0, as the scales; null where all are 8
    const float* bias;     // padded to whole panels, or null
    int64_t outputs, inputs, kind, group;  // group: inner length of an INT4 scale or of a block's
    int64_t parts, lowered;  // of blocks: groups, and whether a code of 0 stands for a number
};

constexpr long DEPTH = 256;
constexpr long LINE = 64;  // bytes

INLINE bool is_float(int64_t kind) { return kind <= BF16 || kind == FP16; }

INLINE bool are_bytes(int64_t kind) { return kind == INT8 || kind == BLOCK8; }

INLINE bool are_nibbles(int64_t kind) { return kind == INT4 || kind == BLOCK4; }

// Weights of one column in a line.
INLINE long weights_per_line(int64_t kind) {
    return kind == FP32 ? 1 : (is_float(kind) ? 2 : (are_bytes(kind) ? 4 : 8));
}

// Lines of one panel.
INLINE long lines_of(int64_t kind, long inputs) {
    const long each = weights_per_line(kind);
    return (inputs + each - 1) / each;
}

// Lines of a piece.
INLINE long piece_of(int64_t kind, long lines) { return is_float(kind) ? DEPTH : lines; }

INLINE long groups_of(long inputs, long group) { return (inputs + group - 1) / group; }

// What stands beside a block of a panel's weights, for 16 columns each: its scale (binary16); where
// it is `lowered`, the number of a code of 0 (binary16); where it has several groups, by what its
// scale is multiplied in each (signed bytes), and then the number of a code of 0 (bytes).
INLINE long side_bytes(const Linear& map) {
    return PANEL * (map.lowered ? 2 : 1) * (2 + (map.parts > 1 ? map.parts : 0));
}

INLINE long panels_of(long outputs) { return padded(outputs) / PANEL; }

// Where line `line` of a panel stands.
INLINE long line_offset(int64_t kind, long lines, long panels, long panel, long line) {
    const long piece = piece_of(kind, lines), start = line / piece * piece;
    const long depth = std::min(piece, lines - start);
    return (start * panels + panel * depth + line - start) * LINE;
}

// Moves the four nibbles of a half word to the lower halves of four bytes.
INLINE uint32_t nibbles_spread(uint32_t half) {
    half = (half | half << 8) & 0x00ff00ff;
    return (half | half << 4) & 0x0f0f0f0f;
}

// Turns a word of stored weights into one that the products take.
INLINE uint32_t word_of(int64_t kind, uint32_t word) {
    // Signed bytes become unsigned.
    if (are_bytes(kind)) return word ^ 0x80808080;
    // Nibbles of the first four weights stand in the lower halves, of the others above.
    if (are_nibbles(kind)) return nibbles_spread(word & 0xffff) | nibbles_spread(word >> 16) << 4;
    return word;
}

// Lays weights [outputs, inputs] out. They are float32, bfloat16, signed bytes, or nibbles of 4
// bits, the lower one first; places beyond them become zero, as their word is.
static void pack(int64_t kind, const void* weights, long outputs, long inputs, uint8_t* packed) {
    const long panels = panels_of(outputs), lines = lines_of(kind, inputs);
    const long bytes = inputs * 4 / weights_per_line(kind);
    const auto* rows = (const uint8_t*)weights;
    // A line of the cache of each column at a time; pieces are whole numbers of such blocks.
    constexpr long STEP = LINE / 4;
    for (long panel = 0; panel < panels; panel++)
        for (long line = 0; line < lines; line += STEP) {
            uint32_t words[PANEL][STEP] = {};
            const long first = panel * PANEL, size = std::min(LINE, bytes - line * 4);
            for (long i = 0; i < std::min(PANEL, outputs - first); i++)
                memcpy(words[i], rows + (first + i) * bytes + line * 4, size);
            auto* to = (uint32_t*)(packed + line_offset(kind, lines, panels, panel, line));
            for (long l = 0; l < std::min(STEP, lines - line); l++, to += PANEL)
                for (long i = 0; i < PANEL; i++) {
                    if (kind != FP16) {
                        to[i] = word_of(kind, words[i][l]);
                        continue;
                    }
                    auto* halves = (uint16_t*)to;
                    halves[i] = (uint16_t)words[i][l];
                    halves[PANEL + i] = (uint16_t)(words[i][l] >> 16);
                }
        }
}
