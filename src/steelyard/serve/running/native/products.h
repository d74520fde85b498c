// Matrix products with packed weights.
//
// Every row's result depends on that row alone: sums run in one order whatever else is in the
// batch.
#pragma once

#include "linear.h"
#include "threads.h"

constexpr long ALONE = 2;  // rows that each thread turns into a tile itself: less than a barrier

// Words of the tiles of some rows, for any weights of at most that inner length.
long tile_words(long rows, long inputs);

// Tiles of some rows, and a row [inputs], of the thread that asks.
int32_t* own_tiles(const Linear& map, long rows);
float* own_row(long inputs);

// Writes row `index` of `rows` into the tiles of a product with `map`.
void encode(const Linear& map, const float* x, long index, long rows, int32_t* tiles);

// Gives the tiles of some rows, for a product with `map`; `row(index, made)` gives a row: where it
// stands, or made [inputs]. Called by all threads of a team; `shared` takes the tiles.
template <class Row>
const int32_t* fill_tiles(Team& team, long rows, const Linear& map, int32_t* shared,
    const Row& row) {
    const bool alone = rows <= ALONE || team.size() == 1;
    int32_t* tiles = alone ? own_tiles(map, rows) : shared;
    float* made = own_row(map.inputs);
    const auto fill = [&](long index) { encode(map, row(index, made), index, rows, tiles); };
    if (!alone) team.loop(rows, 1, fill);
    else
        for (long index = 0; index < rows; index++) fill(index);
    return tiles;
}

// out[rows, outputs] = (add ? out : 0) + rows packed + bias. Called by all threads of a team.
void multiply(Team& team, const int32_t* tiles, long rows, const Linear& map, float* out,
    long out_row, bool add);
