// From logits to tokens: peaks, draws, log probabilities and masks of rows, as sampling/draws.py,
// sampling/logprobs.py and sampling/masks.py do them and explain them; equal to those within the
// rounding of a sum.
//
// Sums run in a fixed number of lanes, so that a draw does not depend on the width of the
// processor's registers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t LANES = 16, BLOCK = 1024, BINS = 1024;
constexpr int SHIFT = 20;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

// Memory of the calling thread, kept between calls.
template <class T>
T* scratch(int64_t size) {
    static thread_local std::vector<T> memory;
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
    return memory.data();
}

Lanes read(const float* from) {
    Lanes values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

double sum(const float* values, int64_t size) {
    Lanes lanes{};
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) lanes += read(values + at);
    float total = 0.0f;
    for (int64_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    for (; at < size; at++) total += values[at];
    return total;
}

float largest(const float* values, int64_t size) {
    Lanes lanes = LOWEST - Lanes{};
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) {
        const Lanes next = read(values + at);
        lanes = next > lanes ? next : lanes;
    }
    float peak = LOWEST;
    for (int64_t lane = 0; lane < LANES; lane++) peak = std::max(peak, lanes[lane]);
    for (; at < size; at++) peak = values[at] > peak ? values[at] : peak;
    return peak;
}

// By their bits: comparisons of NaN are false, so the peak does not show it.
bool has_nan(const float* values, int64_t size) {
    uint32_t broken = 0;
    for (int64_t at = 0; at < size; at++)
        broken |= (std::bit_cast<uint32_t>(values[at]) & 0x7FFFFFFFu) > 0x7F800000u;
    return broken;
}

// Fills weights with exp((logit - peak) / temperature) and gives their sum; see draws.weigh.
double weigh(const float* logits, int64_t size, float peak, double temperature, float* weights) {
    const float scale = static_cast<float>(1.4426950408889634 / temperature);
    for (int64_t at = 0; at < size; at++) {
        float exponent = (logits[at] - peak) * scale;
        exponent = exponent > -127.0f ? exponent : -127.0f;
        const float whole = std::floor(exponent + 0.5f), x = exponent - whole;
        float value = 1.5403530e-4f;
        value = value * x + 1.3333558e-3f;
        value = value * x + 9.6181291e-3f;
        value = value * x + 5.5504109e-2f;
        value = value * x + 2.4022651e-1f;
        value = value * x + 6.9314718e-1f;
        value = value * x + 1.0f;
        weights[at] = value * std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
    }
    double total = 0.0;
    for (int64_t first = 0; first < size; first += BLOCK)
        total += sum(weights + first, std::min(BLOCK, size - first));
    return total;
}

// Philox4x32 with ten rounds, as a draw in [0, 1); see draws.philox.
double philox(uint64_t seed, uint64_t position) {
    const uint64_t mask = 0xFFFFFFFFu;
    uint64_t k0 = seed & mask, k1 = seed >> 32;
    uint64_t c0 = position & mask, c1 = position >> 32, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t low = 0xD2511F53u * c0, high = 0xCD9E8D57u * c2;
        c0 = (high >> 32) ^ c1 ^ k0;
        c1 = high & mask;
        c2 = (low >> 32) ^ c3 ^ k1;
        c3 = low & mask;
        k0 = (k0 + 0x9E3779B9u) & mask;
        k1 = (k1 + 0xBB67AE85u) & mask;
    }
    return static_cast<double>(((c0 << 32) | c1) >> 11) * 0x1p-53;
}

struct Histogram {
    int64_t counts[BINS];
    double masses[BINS];

    double total() const {
        double all = 0.0;
        for (double mass : masses) all += mass;
        return all;
    }
};

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

// In four tables, so that additions to one bin do not wait for each other; count and mass of a bin
// stand side by side, in one line of the cache.
void count(const float* weights, int64_t size, Histogram& made) {
    struct Bin {
        int64_t tokens;
        double mass;
    };
    Bin tables[4][BINS] = {};
    const auto add = [&](int lane, float weight) {
        Bin& bin = tables[lane][bits(weight) >> SHIFT];
        bin.tokens++;
        bin.mass += weight;
    };
    int64_t at = 0;
    for (; at + 4 <= size; at += 4)
        for (int lane = 0; lane < 4; lane++) add(lane, weights[at + lane]);
    for (; at < size; at++) add(0, weights[at]);
    for (int64_t bin = 0; bin < BINS; bin++) {
        Bin all{};
        for (const auto& table : tables) {
            all.tokens += table[bin].tokens;
            all.mass += table[bin].mass;
        }
        made.counts[bin] = all.tokens;
        made.masses[bin] = all.mass;
    }
}

struct Place {
    uint32_t bin = 0;
    int64_t count_above = 0;
    double mass_above = 0.0;
};

// Goes down the bins until a number of tokens or a mass is reached.
Place walk(const Histogram& given, int64_t quota, double target) {
    Place last;
    int64_t count = 0;
    double mass = 0.0;
    for (int64_t bin = BINS - 1; bin >= 0; bin--) {
        if (!given.counts[bin]) continue;
        last = {static_cast<uint32_t>(bin), count, mass};
        count += given.counts[bin];
        mass += given.masses[bin];
        if (count >= quota || mass >= target) break;
    }
    return last;
}

// What a cut keeps: weights above `value`, and the first `ties` of just this weight.
struct Cut {
    double value;
    int64_t ties;
};

// Finds the shortest run of heaviest tokens of a number or a mass, and cuts the histogram to it.
Cut cut(const float* weights, int64_t size, int64_t quota, double target, Histogram& given,
        uint32_t* found) {
    const Place first = walk(given, quota, target);
    int64_t filled = 0;
    for (int64_t at = 0; at < size; at++)
        if (bits(weights[at]) >> SHIFT == first.bin) found[filled++] = bits(weights[at]);
    int64_t above = first.count_above;
    double mass = first.mass_above;
    uint32_t prefix = first.bin;
    Histogram fine;
    // Ten further bits at a time, over the tokens of one bin only.
    for (int shift : {10, 0}) {
        fine = {};
        for (int64_t at = 0; at < filled; at++)
            if (found[at] >> (shift + 10) == prefix) {
                const uint32_t bin = (found[at] >> shift) & (BINS - 1);
                fine.counts[bin]++;
                fine.masses[bin] += std::bit_cast<float>(found[at]);
            }
        const Place next = walk(fine, quota - above, target - mass);
        above += next.count_above;
        mass += next.mass_above;
        prefix = prefix << 10 | next.bin;
    }
    const double value = std::bit_cast<float>(prefix);
    int64_t ties = std::min(fine.counts[prefix & (BINS - 1)], quota - above);
    if (mass + ties * value > target)
        ties = std::max<int64_t>(1, static_cast<int64_t>(std::ceil((target - mass) / value)));
    std::fill_n(given.counts, first.bin, 0);
    std::fill_n(given.masses, first.bin, 0.0);
    given.masses[first.bin] = mass + ties * value - first.mass_above;
    return {value, ties};
}

int64_t draw_uncut(const float* weights, int64_t size, double total, double draw) {
    const double target = draw * total;
    double before = 0.0;
    int64_t chosen = 0;
    for (int64_t first = 0; first < size; first += BLOCK) {
        const int64_t end = std::min(first + BLOCK, size);
        const double mass = sum(weights + first, end - first);
        if (before + mass <= target && end < size) {
            before += mass;
            continue;
        }
        for (int64_t at = first; at < end; at++) {
            if (!(weights[at] > 0)) continue;
            chosen = at;
            before += weights[at];
            if (before > target) return chosen;
        }
    }
    while (weights[chosen] == 0) chosen++;  // rounding let the target reach the sum
    return chosen;
}

int64_t draw_cut(const float* weights, int64_t size, Cut kept, double draw, const Histogram& given) {
    const double target = draw * given.total();
    uint32_t bin = 0;
    double before = 0.0, after = 0.0;
    for (int64_t candidate = BINS - 1; candidate >= 0; candidate--) {
        if (!(given.masses[candidate] > 0)) continue;
        bin = static_cast<uint32_t>(candidate);
        before = after;
        after += given.masses[candidate];
        if (after > target) break;
    }
    const float lightest = static_cast<float>(kept.value);
    int64_t chosen = 0;  // stays the last candidate should rounding let the target reach the sum
    for (int64_t at = 0; at < size; at++) {
        if (bits(weights[at]) >> SHIFT != bin || weights[at] < lightest) continue;
        if (weights[at] == lightest && --kept.ties < 0) continue;
        chosen = at;
        before += weights[at];
        if (before > target) break;
    }
    return chosen;
}

double drop_light(float* weights, int64_t size, double least) {
    const float bound = static_cast<float>(least);
    for (int64_t at = 0; at < size; at++) weights[at] = weights[at] >= bound ? weights[at] : 0.0f;
    double total = 0.0;
    for (int64_t first = 0; first < size; first += BLOCK)
        total += sum(weights + first, std::min(BLOCK, size - first));
    return total;
}

}  // namespace

extern "C" {

// Of all: `logits` has rows of `size`; other arrays have `count` entries, and `rows` says which.

void steelyard_peaks(const float* logits, int64_t size, int64_t count, float* peaks) {
    for (int64_t row = 0; row < count; row++) {
        const float* values = logits + row * size;
        const float peak = largest(values, size);
        peaks[row] = has_nan(values, size) ? std::numeric_limits<float>::quiet_NaN() : peak;
    }
}

void steelyard_likeliest(const float* logits, int64_t size, const float* peaks, int64_t count,
                         const int64_t* rows, int64_t* tokens) {
    for (int64_t at = 0; at < count; at++) {
        const float* values = logits + rows[at] * size;
        const float peak = peaks[rows[at]];
        int64_t first = 0;
        // Without a branch per token the search runs in vector registers.
        for (bool hit = false; first < size; first += BLOCK) {
            for (int64_t token = first; token < std::min(first + BLOCK, size); token++)
                hit |= values[token] == peak;
            if (hit) break;
        }
        tokens[at] = std::find(values + first, values + size, peak) - values;
    }
}

void steelyard_draw(const float* logits, int64_t size, const float* peaks, int64_t count,
                    const int64_t* rows, const double* temperature, const double* min_p,
                    const int64_t* top_k, const double* top_p, const uint64_t* seeds,
                    const uint64_t* positions, int64_t* tokens) {
    float* weights = scratch<float>(size);
    uint32_t* found = scratch<uint32_t>(size);
    Histogram histogram;
    for (int64_t at = 0; at < count; at++) {
        const double draw = philox(seeds[at], positions[at]);
        const float* values = logits + rows[at] * size;
        double total = weigh(values, size, peaks[rows[at]], temperature[at], weights);
        // The likeliest token has weight 1, so its share is the bound itself.
        if (min_p[at] > 0) total = drop_light(weights, size, min_p[at]);
        if (top_k[at] >= size && top_p[at] >= 1.0) {
            tokens[at] = draw_uncut(weights, size, total, draw);
            continue;
        }
        ::count(weights, size, histogram);
        Cut kept{0.0, size};
        const double all = std::numeric_limits<double>::infinity();
        if (top_k[at] < size)
            kept = cut(weights, size, top_k[at], all, histogram, found);
        // After the first cut the histogram holds what is kept: top_p counts among that.
        if (top_p[at] < 1.0)
            kept = cut(weights, size, std::min(top_k[at], size),
                       top_p[at] * histogram.total(), histogram, found);
        tokens[at] = draw_cut(weights, size, kept, draw, histogram);
    }
}

void steelyard_log_totals(const float* logits, int64_t size, const float* peaks, int64_t count,
                          const int64_t* rows, double* totals) {
    float* weights = scratch<float>(size);
    for (int64_t at = 0; at < count; at++) {
        const float peak = peaks[rows[at]];
        totals[at] =
            peak + std::log(weigh(logits + rows[at] * size, size, peak, 1.0, weights));
    }
}

// The `width` largest logits of each row, equal ones by rising token.
void steelyard_tops(const float* logits, int64_t size, int64_t count, const int64_t* rows,
                    int64_t width, int64_t* tokens, float* values) {
    for (int64_t at = 0; at < count; at++) {
        int64_t* ids = tokens + at * width;
        float* best = values + at * width;
        std::fill_n(ids, width, -1);
        std::fill_n(best, width, LOWEST);
        const float* row = logits + rows[at] * size;
        for (int64_t token = 0; token < size; token++) {
            if (!(row[token] > best[width - 1])) continue;
            int64_t place = width - 1;
            for (; place > 0 && row[token] > best[place - 1]; place--) {
                best[place] = best[place - 1];
                ids[place] = ids[place - 1];
            }
            best[place] = row[token];
            ids[place] = token;
        }
    }
}

// Minus infinity where a row's mask has a 0, of `words` words of 32 tokens.
void steelyard_forbid(float* logits, int64_t size, int64_t count, const int64_t* rows,
                      int64_t words, const uint32_t* masks) {
    for (int64_t at = 0; at < count; at++)
        for (int64_t word = 0; word < words; word++) {
            const uint32_t allowed = masks[at * words + word];
            if (allowed == 0xFFFFFFFFu) continue;  // as most words of a loose grammar
            const int64_t end = std::min(word * 32 + 32, size);
            for (int64_t token = word * 32; token < end; token++)
                if (!(allowed >> (token & 31) & 1)) logits[rows[at] * size + token] = LOWEST;
        }
}

}  // extern "C"
