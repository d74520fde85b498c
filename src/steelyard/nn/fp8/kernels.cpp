// Rounds float32 and bfloat16 to codes of eight bits, decodes them, and multiplies a matrix of
// them with a vector, reading one byte a weight.
//
// What rounds is written without branches, so that the compiler puts it into vector registers.
#include <algorithm>
#include <bit>
#include <cstdint>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace {

struct Halved {  // bfloat16
    uint16_t bits;
};

inline float wide(float x) { return x; }
inline float wide(Halved x) { return std::bit_cast<float>((uint32_t)x.bits << 16); }
inline void put(float& at, float x) { at = x; }
// Only numbers that bfloat16 holds exactly come here.
inline void put(Halved& at, float x) { at.bits = std::bit_cast<uint32_t>(x) >> 16; }

// Numbers [rows, columns] with a factor for each `group` of a row.
struct Grid {
    int64_t rows, columns, group;
    const float* factors;
    int64_t groups() const { return (columns + group - 1) / group; }
};

constexpr int64_t PART = 1 << 18;  // numbers that are worth a thread
constexpr int64_t SHARES = 8;  // per thread

// Calls work(first, last) on shares of `count` items, each of `size` numbers.
//
// OpenMP, because PyTorch has loaded that runtime: its threads wait for work by spinning, so threads
// of another pool would wait for a processor. Late ones take fewer shares.
template <typename Work>
void share(int64_t count, int64_t size, int64_t threads, const Work& work) {
    const int64_t wanted = std::min({threads, count * size / PART, count});
    if (wanted <= 1) return work(0, count);
    const int64_t shares = std::min(count, wanted * SHARES);
#pragma omp parallel for schedule(dynamic) num_threads(wanted)
    for (int64_t part = 0; part < shares; part++)
        work(count * part / shares, count * (part + 1) / shares);
}

struct Rounding {
    int32_t mantissa_bits, min_exponent;
    float largest;
    uint32_t nan_code;
    int32_t has_negative_zero;
};

template <typename From, typename To>
void round_run(const From* __restrict from, int64_t count, float factor, float back, Rounding how,
    uint8_t* __restrict codes, To* __restrict to) {
    const uint32_t shift = 23 - how.mantissa_bits, half = (1u << (shift - 1)) - 1;
    const uint32_t lowest = (uint32_t)(how.min_exponent + 126) << how.mantissa_bits;
    const float small = std::bit_cast<float>((uint32_t)(how.min_exponent + 127) << 23);
    // Adding this rounds a number below `small` to whole steps: they are the sum's last bits.
    const float magic = small * (float)(1u << shift);
    const uint32_t magic_bits = std::bit_cast<uint32_t>(magic);
    const uint32_t kept = how.has_negative_zero ? 0x80000000u : 0;
    const uint32_t nan = how.nan_code, nan_kept = nan < 128 ? 0x80000000u : 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = std::bit_cast<uint32_t>(wide(from[i]) * factor);
        const uint32_t size = bits & 0x7fffffff, sign = bits & 0x80000000u;
        const uint32_t even = (size + half + (size >> shift & 1)) & ~((1u << shift) - 1);
        const float normal = std::min(std::bit_cast<float>(even), how.largest);
        const float sum = std::bit_cast<float>(size) + magic;
        const bool is_small = std::bit_cast<float>(size) < small, is_nan = size > 0x7f800000u;
        const uint32_t code = is_small ? std::bit_cast<uint32_t>(sum) - magic_bits
                                       : (std::bit_cast<uint32_t>(normal) >> shift) - lowest;
        const float value = is_small ? sum - magic : normal;
        const uint32_t shown = sign & (code ? 0x80000000u : kept);
        codes[i] = is_nan ? nan | (sign & nan_kept) >> 24 : code | shown >> 24;
        const float found = is_nan ? std::bit_cast<float>(0x7fc00000u) : value * back;
        put(to[i], std::bit_cast<float>(std::bit_cast<uint32_t>(found) | shown));
    }
}

template <typename From, typename To>
void round_all(const void* from, const Grid& grid, int64_t unscaled, const Rounding& how,
    uint8_t* codes, void* to, int64_t threads) {
    const int64_t groups = grid.groups();
    // One row of all numbers is cut by numbers, others by rows.
    const bool is_flat = grid.rows == 1 && groups == 1;
    const int64_t count = is_flat ? grid.columns : grid.rows;
    share(count, is_flat ? 1 : grid.columns, threads, [=](int64_t first, int64_t last) {
        auto run = [&](int64_t start, int64_t size, float factor) {
            round_run((const From*)from + start, size, factor, unscaled ? 1 / factor : 1.0f, how,
                codes + start, (To*)to + start);
        };
        if (is_flat) return run(first, last - first, grid.factors[0]);
        for (int64_t row = first; row < last; row++)
            for (int64_t g = 0; g < groups; g++) {
                const int64_t size = std::min(grid.group, grid.columns - g * grid.group);
                run(row * grid.columns + g * grid.group, size, grid.factors[row * groups + g]);
            }
    });
}

template <typename To>
void decode_all(const uint8_t* codes, const Grid& grid, const float* table, void* to,
    int64_t threads) {
    const int64_t groups = grid.groups();
    share(grid.rows, grid.columns, threads, [=](int64_t first, int64_t last) {
        for (int64_t run = first * groups; run < last * groups; run++) {
            const int64_t g = run % groups, start = run / groups * grid.columns + g * grid.group;
            const int64_t size = std::min(grid.group, grid.columns - g * grid.group);
            const float back = grid.factors ? grid.factors[run] : 1;
            for (int64_t i = start; i < start + size; i++)
                put(((To*)to)[i], table[codes[i]] * back);
        }
    });
}

#if defined(__AVX512F__) && defined(__AVX512BW__)

// A code of four exponent bits moved to binary16's place is that number times 2^(bias - 15).
inline void add_32(const uint8_t* codes, const float* x, __m512& low, __m512& high) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)codes));
    // Widening copied the sign above, so it lies in bit 15 as well as in 14.
    const __m512i halves =
        _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16((int16_t)0xbf80));
    low = _mm512_fmadd_ps(
        _mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_loadu_ps(x), low);
    high = _mm512_fmadd_ps(
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), _mm512_loadu_ps(x + 16), high);
}

constexpr int64_t ROWS = 4;
constexpr int64_t AHEAD = 1024;  // bytes of a row that are asked for before they are needed

template <int64_t COUNT>
void products(const uint8_t* codes, const float* table, int64_t columns, float to_numbers,
    const float* x, float* y) {
    __m512 sums[COUNT][2];
    for (auto& sum : sums) sum[0] = sum[1] = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 64 <= columns; i += 64)
        for (int64_t row = 0; row < COUNT; row++) {
            const uint8_t* at = codes + row * columns + i;
            _mm_prefetch((const char*)at + AHEAD, _MM_HINT_T0);
            add_32(at, x + i, sums[row][0], sums[row][1]);
            add_32(at + 32, x + i + 32, sums[row][0], sums[row][1]);
        }
    for (int64_t row = 0; row < COUNT; row++) {
        float sum = _mm512_reduce_add_ps(_mm512_add_ps(sums[row][0], sums[row][1])) * to_numbers;
        for (int64_t j = i; j < columns; j++) sum += table[codes[row * columns + j]] * x[j];
        y[row] = sum;
    }
}

#else

constexpr int64_t ROWS = 1;

template <int64_t COUNT>
void products(const uint8_t* codes, const float* table, int64_t columns, float, const float* x,
    float* y) {
    float sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += table[codes[i]] * x[i];
    *y = sum;
}

#endif

}  // namespace

extern "C" {

// Rounds numbers times their factors. `kinds`: 1 where numbers are bfloat16, 2 where results are.
void steelyard_fp8_round(const void* from, int64_t kinds, int64_t rows, int64_t columns,
    int64_t group, const float* factors, int64_t unscaled, int64_t mantissa_bits,
    int64_t min_exponent, float largest, int64_t nan_code, int64_t has_negative_zero,
    uint8_t* codes, void* to, int64_t threads) {
    const Grid grid{rows, columns, group, factors};
    const Rounding how{(int32_t)mantissa_bits, (int32_t)min_exponent, largest,
        (uint32_t)nan_code, (int32_t)has_negative_zero};
    auto call = kinds == 0 ? round_all<float, float>
        : kinds == 2       ? round_all<float, Halved>
        : kinds == 1       ? round_all<Halved, float>
                           : round_all<Halved, Halved>;
    call(from, grid, unscaled, how, codes, to, threads);
}

// Looks codes up and multiplies them by factors, where there are any.
void steelyard_fp8_decode(const uint8_t* codes, int64_t halved, int64_t rows, int64_t columns,
    int64_t group, const float* factors, const float* table, void* to, int64_t threads) {
    const Grid grid{rows, columns, group, factors};
    (halved ? decode_all<Halved> : decode_all<float>)(codes, grid, table, to, threads);
}

// y[row] = sum of numbers of codes [rows, columns] times x; `to_numbers` is 2^(15 - bias).
void steelyard_fp8_gemv(const uint8_t* codes, const float* table, int64_t rows, int64_t columns,
    float to_numbers, const float* x, float* y, int64_t threads) {
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    share(blocks, ROWS * columns, threads, [=](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; block++) {
            const int64_t row = block * ROWS, left = std::min(ROWS, rows - row);
            if (left == ROWS) {
                products<ROWS>(codes + row * columns, table, columns, to_numbers, x, y + row);
                continue;
            }
            for (int64_t i = row; i < row + left; i++)
                products<1>(codes + i * columns, table, columns, to_numbers, x, y + i);
        }
    });
}
}
