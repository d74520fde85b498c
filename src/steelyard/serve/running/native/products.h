// Matrix products with packed weights.
//
// Every row's result depends on that row alone: sums run in one order whatever else is in the
// batch.
#pragma once

#include "threads.h"
#include "tiles.h"

constexpr long HEIGHT = 192;  // rows of a product that stay in the second-level cache
constexpr long GROUP = 4;     // panels that a thread takes at once
constexpr long ALONE = 4;     // rows that each thread turns into a tile itself: less than a barrier

// Words of the tiles of some rows, for any weights of at most that inner length.
INLINE long tile_words(long rows, long inputs) { return (rows + MOST_ROWS) * (inputs + 2); }

static const int32_t* fill_tiles(Team& team, const float* x, long x_row, long rows,
    const Linear& map, int32_t* shared) {
    const long step = MOST_ROWS * row_words(map);
    if (rows <= ALONE) {
        static thread_local std::vector<int32_t> own;
        if ((long)own.size() < step) own.resize(step);
        fill_tile(map, x, x_row, rows, own.data());
        return own.data();
    }
    team.loop((rows + MOST_ROWS - 1) / MOST_ROWS, 1, [&](long tile) {
        const long first = tile * MOST_ROWS;
        fill_tile(map, x + first * x_row, x_row, std::min(rows - first, MOST_ROWS),
            shared + tile * step);
    });
    return shared;
}

// out[rows, outputs] = (add ? out : 0) + x packed + bias. Called by all threads of a team;
// `shared` takes the tiles.
static void product(Team& team, const float* x, long x_row, long rows, const Linear& map,
    float* out, long out_row, bool add, int32_t* shared) {
    const long panels = panels_of(map.outputs), groups = (panels + GROUP - 1) / GROUP;
    const long blocks = (rows + HEIGHT - 1) / HEIGHT, lines = lines_of(map.kind, map.inputs);
    const long piece = piece_of(map.kind, lines), step = MOST_ROWS * row_words(map);
    const int32_t* tiles = fill_tiles(team, x, x_row, rows, map, shared);
    const auto multiply = [&](long panel, long line, long top, long end) {
        const uint8_t* weights = (const uint8_t*)map.packed
            + line_offset(map.kind, lines, panels, panel, line);
        for (long row = top; row < end; row += MOST_ROWS) {
            const long height = std::min(end - row, MOST_ROWS);
            multiply_tile(map, {tiles + row / MOST_ROWS * step + line * tile_height(height),
                weights, std::min(piece, lines - line), out + row * out_row + panel * PANEL,
                out_row, height, !add && line == 0,
                line == 0 && map.bias ? map.bias + panel * PANEL : nullptr, panel});
        }
    };
    team.loop(blocks * groups, 1, [&](long work) {
        const long top = work / groups * HEIGHT, end = std::min(rows, top + HEIGHT);
        const long first = work % groups * GROUP;
        for (long line = 0; line < lines; line += piece)
            for (long panel = first; panel < std::min(panels, first + GROUP); panel++)
                multiply(panel, line, top, end);
    });
}
