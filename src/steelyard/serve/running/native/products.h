// Matrix products with packed weights.
//
// Every row's result depends on that row alone: sums run in one order whatever else is in the
// batch.
#pragma once

#include "linear.h"
#include "threads.h"

// Words of the tiles of some rows, for any weights of at most that inner length.
long tile_words(long rows, long inputs);

// out[rows, outputs] = (add ? out : 0) + x packed + bias. Called by all threads of a team;
// `shared` takes the tiles.
void product(Team& team, const float* x, long x_row, long rows, const Linear& map, float* out,
    long out_row, bool add, int32_t* shared);
