// Scores documents from the bytes of their records, as they come from memory or from a drive.
//
// Sums are taken in the order of the numba kernel and never contracted, so both find the same bits.

#include <linux/aio_abi.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <vector>

#include "vectors.h"

namespace steelyard {
namespace {

constexpr int64_t kHead = 16;
constexpr uint64_t kGoesOn = 1;
constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ULL;
constexpr int64_t kSpinNs = 60'000;  // shorter waits turn in place: a sleep ends as much too late
constexpr size_t kTogether = 16;     // reads of which a wait may see several end at once
constexpr int64_t kTokens = 4;       // tokens of a document that share loads of the query's
enum State : uint8_t { kWaiting = 0, kScored = 1, kDamaged = 2, kUnread = 3, kDropped = 4 };

// As `ScoreFields` in multivector/native.py, in its order.
struct Job {
  int64_t count;
  const int64_t* offsets;
  const int64_t* sizes;
  const int64_t* numbers;
  uint8_t* states;
  const uint8_t* dropped;  // set by another thread while this one works
  int64_t block;
  int64_t text_dim;
  int64_t token_bytes;
  int64_t codec;
  int64_t dim;
  const float* coarse;
  const float* parts;
  int64_t num_parts;
  int64_t part_centers;
  int64_t part_dim;
  int64_t longest;  // numbers of the longest record
  const float* texts;
  const float* columns;
  int64_t num_columns;
  const int64_t* starts;
  const int64_t* lengths;
  const int64_t* pair_starts;
  const int64_t* pair_queries;
  float* text_scores;
  float* token_scores;
};

int64_t now_ns() {
  timespec moment{};
  clock_gettime(CLOCK_MONOTONIC, &moment);
  return moment.tv_sec * 1'000'000'000LL + moment.tv_nsec;
}

uint32_t word_sum(const uint64_t* words, int64_t count) {
  uint64_t lanes[8];
  std::fill(lanes, lanes + 8, kPrime);
  const int64_t whole = count / 8 * 8;
  for (int64_t at = 0; at < whole; at += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] = (lanes[lane] ^ words[at + lane]) * kPrime;
  }
  uint64_t total = static_cast<uint64_t>(count) * 8;
  for (const uint64_t lane : lanes) {
    total = (total ^ lane ^ (lane >> 29)) * kPrime;
    total ^= total >> 32;
  }
  for (int64_t at = whole; at < count; ++at) {
    total = (total ^ words[at]) * kPrime;
    total ^= total >> 32;
  }
  return static_cast<uint32_t>(total);
}

void widen_halves(const uint8_t* raw, int64_t count, float* values) {
  for (int64_t place = 0; place < count; ++place) {
    uint16_t word;
    __builtin_memcpy(&word, raw + 2 * place, 2);
    const uint32_t bits = (word & 0x7FFFu) << 13 | (word & 0x8000u) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    values[place] = value * 0x1p112f;  // also right below the smallest normal number
  }
}

void decode(const Job& job, const uint8_t* raw, int64_t tokens, float* values) {
  if (job.codec == 0) return widen_halves(raw, tokens * job.dim, values);
  for (int64_t token = 0; token < tokens; ++token, values += job.dim) {
    const uint8_t* code = raw + token * job.token_bytes;
    if (job.codec == 1) {
      float scale;
      __builtin_memcpy(&scale, code, 4);
      const int8_t* numbers = reinterpret_cast<const int8_t*>(code + 4);
      for (int64_t at = 0; at < job.dim; ++at) values[at] = static_cast<float>(numbers[at]) * scale;
      continue;
    }
    const float* center = job.coarse + (code[0] | code[1] << 8) * job.dim;
    for (int64_t part = 0; part < job.num_parts; ++part) {
      const float* own = job.parts + (part * job.part_centers + code[2 + part]) * job.part_dim;
      for (int64_t at = 0; at < job.part_dim; ++at) {
        values[part * job.part_dim + at] = center[part * job.part_dim + at] + own[at];
      }
    }
  }
}

// Products of `kCount` tokens with sixteen tokens of a query, summed eight numbers at a time.
template <int64_t kCount>
void raise(const Job& job, const float* values, const float* columns, Lanes& best) {
  Lanes total[kCount] = {};
  const int64_t whole = job.dim - job.dim % 8, stride = job.num_columns;
  for (int64_t spot = 0; spot < whole; spot += 8) {
    Lanes rows[8];
    for (int at = 0; at < 8; ++at) rows[at] = widened(columns + (spot + at) * stride);
    for (int64_t token = 0; token < kCount; ++token) {
      const float* v = values + token * job.dim + spot;
      total[token] += ((v[0] * rows[0] + v[1] * rows[1]) + (v[2] * rows[2] + v[3] * rows[3])) +
                      ((v[4] * rows[4] + v[5] * rows[5]) + (v[6] * rows[6] + v[7] * rows[7]));
    }
  }
  for (int64_t spot = whole; spot < job.dim; ++spot) {
    const Lanes row = widened(columns + spot * stride);
    for (int64_t token = 0; token < kCount; ++token) {
      total[token] += values[token * job.dim + spot] * row;
    }
  }
  for (int64_t token = 0; token < kCount; ++token) {
    best = total[token] > best ? total[token] : best;
  }
}

void raise_best(const Job& job, const float* values, int64_t tokens, int64_t query, float* best) {
  for (int64_t first = job.starts[query]; first < job.starts[query + 1]; first += kLanes) {
    Lanes own = widened(best + first);
    int64_t token = 0;
    for (; token + kTokens <= tokens; token += kTokens) {
      raise<kTokens>(job, values + token * job.dim, job.columns + first, own);
    }
    for (; token < tokens; ++token) {
      raise<1>(job, values + token * job.dim, job.columns + first, own);
    }
    __builtin_memcpy(best + first, &own, sizeof(own));
  }
}

struct Room {
  explicit Room(const Job& job)
      : values(std::max(job.longest, job.text_dim)), best(std::max<int64_t>(job.num_columns, 1)) {}
  std::vector<float> values;
  std::vector<float> best;
};

// Scores one document for all queries that want it; `size` bytes are there.
State score(const Job& job, const uint8_t* raw, int64_t size, int64_t document, Room& room) {
  const int64_t begin = job.pair_starts[document], end = job.pair_starts[document + 1];
  float* values = room.values.data();
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t query = job.pair_queries[pair];
    std::fill(room.best.begin() + job.starts[query], room.best.begin() + job.starts[query + 1],
              -std::numeric_limits<float>::infinity());
  }
  int64_t at = 0, seen = 0;
  uint64_t flags = kGoesOn;
  while (flags & kGoesOn) {
    if (at + job.block > size) return kDamaged;
    const uint64_t* words = reinterpret_cast<const uint64_t*>(raw + at);
    const int64_t tokens = words[0] >> 32 & 0xFFFF;
    const int64_t used = kHead + 2 * job.text_dim + tokens * job.token_bytes;
    const int64_t own = (used + job.block - 1) / job.block * job.block;
    if (at + own > size || tokens * job.dim > job.longest) return kDamaged;
    const uint32_t found = word_sum(words + 1, own / 8 - 1) ^ static_cast<uint32_t>(words[0] >> 32);
    // The number guards against a read that ends up at another document's record.
    if (static_cast<uint32_t>(words[0]) != found ||
        static_cast<int64_t>(words[1]) != job.numbers[document]) {
      return kDamaged;
    }
    if (at == 0) {
      widen_halves(raw + kHead, job.text_dim, values);
      for (int64_t pair = begin; pair < end; ++pair) {
        const float* text = job.texts + job.pair_queries[pair] * job.text_dim;
        float total = 0.0f;
        for (int64_t place = 0; place < job.text_dim; ++place) total += values[place] * text[place];
        job.text_scores[pair] = total;
      }
    }
    decode(job, raw + at + kHead + 2 * job.text_dim, tokens, values);
    for (int64_t pair = begin; pair < end; ++pair) {
      raise_best(job, values, tokens, job.pair_queries[pair], room.best.data());
    }
    seen += tokens;
    at += own;
    flags = words[0] >> 48;
  }
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t query = job.pair_queries[pair];
    float total = 0.0f;
    // Columns behind a query's length only fill vector registers.
    for (int64_t place = 0; place < (seen ? job.lengths[query] : 0); ++place) {
      total += room.best[job.starts[query] + place];
    }
    job.token_scores[pair] = total;
  }
  return kScored;
}

// Records in memory that a drive of some latency and rates would have brought later.
class Played {
 public:
  Played(const Job& job, const uint8_t* raw, const int64_t* busy_ns, int64_t first_ns)
      : job_(job), raw_(raw), busy_ns_(busy_ns), first_ns_(first_ns) {}

  void ask(const std::vector<int64_t>& places) {
    const int64_t now = busy_ns_ ? now_ns() : 0;
    for (const int64_t place : places) {
      if (busy_ns_) last_ns_ = std::max(last_ns_ + busy_ns_[place], now + first_ns_ + busy_ns_[place]);
      under_way_.push_back({place, last_ns_});
    }
  }

  // Calls `done` with each document that has come; waits for one at least.
  template <typename Done>
  void wait(Done done) {
    int64_t now = busy_ns_ ? now_ns() : 0;
    if (now < under_way_[head_].ready_ns) {
      const size_t few = std::min(head_ + kTogether, under_way_.size()) - 1;
      const int64_t far_ns = under_way_[few].ready_ns - now;
      if (far_ns > kSpinNs) {
        const timespec some{0, far_ns - kSpinNs / 2};
        nanosleep(&some, nullptr);
      }
      while ((now = now_ns()) < under_way_[head_].ready_ns) sched_yield();
    }
    while (head_ < under_way_.size() && under_way_[head_].ready_ns <= now) {
      const int64_t place = under_way_[head_++].place;
      done(place, raw_ + job_.offsets[place], job_.sizes[place]);
    }
  }

  size_t under_way() const { return under_way_.size() - head_; }

 private:
  struct Read {
    int64_t place;
    int64_t ready_ns;
  };
  const Job& job_;
  const uint8_t* raw_;
  const int64_t* busy_ns_;
  int64_t first_ns_, last_ns_ = 0;
  std::vector<Read> under_way_;
  size_t head_ = 0;
};

// Reads that the system does by itself: many are handed over in one call, and no thread waits.
class Asynchronous {
 public:
  Asynchronous(const Job& job, int file, aio_context_t queue, uint8_t* buffers, int64_t depth,
               int64_t stride)
      : job_(job), file_(file), queue_(queue), buffers_(buffers), stride_(stride), reads_(depth),
        events_(depth), places_(depth) {
    for (int64_t slot = depth; slot-- > 0;) free_.push_back(slot);
  }

  void ask(const std::vector<int64_t>& places) {
    std::vector<iocb*> wanted;
    for (const int64_t place : places) {
      const int64_t slot = free_.back();
      free_.pop_back();
      iocb& read = reads_[slot] = iocb{};
      read.aio_fildes = file_;
      read.aio_lio_opcode = IOCB_CMD_PREAD;
      read.aio_buf = reinterpret_cast<uint64_t>(buffers_ + slot * stride_);
      read.aio_nbytes = job_.sizes[place];
      read.aio_offset = job_.offsets[place];
      read.aio_data = slot;
      places_[slot] = place;
      wanted.push_back(&read);
    }
    size_t done = 0;
    while (done < wanted.size()) {
      const long taken =
          syscall(SYS_io_submit, queue_, wanted.size() - done, wanted.data() + done);
      if (taken > 0) {
        done += taken;
        under_way_ += taken;
      } else if (taken < 0 && errno == EINTR) {
        continue;
      } else {
        break;
      }
    }
    // What the system does not take is read here.
    for (; done < wanted.size(); ++done) here_.push_back(wanted[done]->aio_data);
  }

  template <typename Done>
  void wait(Done done) {
    for (const int64_t slot : here_) {
      const iocb& read = reads_[slot];
      ended(slot, pread(file_, buffers_ + slot * stride_, read.aio_nbytes, read.aio_offset), done);
    }
    here_.clear();
    if (!under_way_) return;
    const long count =
        syscall(SYS_io_getevents, queue_, 1L, static_cast<long>(events_.size()), events_.data(), nullptr);
    for (long event = 0; event < count; ++event) {
      --under_way_;
      ended(events_[event].data, events_[event].res, done);
    }
  }

  size_t under_way() const { return under_way_ + here_.size(); }

 private:
  template <typename Done>
  void ended(int64_t slot, int64_t bytes, Done done) {
    const int64_t place = places_[slot];
    const bool whole = bytes == job_.sizes[place];
    done(place, whole ? buffers_ + slot * stride_ : nullptr, job_.sizes[place]);
    free_.push_back(slot);
  }

  const Job& job_;
  int file_;
  aio_context_t queue_;
  uint8_t* buffers_;
  int64_t stride_;
  std::vector<iocb> reads_;
  std::vector<io_event> events_;
  std::vector<int64_t> places_, free_, here_;
  size_t under_way_ = 0;
};

// Keeps `depth` reads under way; documents that were dropped meanwhile are not asked for.
template <typename Source>
void score_all(const Job& job, int64_t depth, Source& source) {
  Room room(job);
  std::vector<int64_t> wanted;
  int64_t next = 0;
  while (next < job.count || source.under_way()) {
    wanted.clear();
    while (next < job.count && static_cast<int64_t>(source.under_way() + wanted.size()) < depth) {
      if (__atomic_load_n(job.dropped + next, __ATOMIC_RELAXED)) {
        job.states[next++] = kDropped;
      } else {
        wanted.push_back(next++);
      }
    }
    if (!wanted.empty()) source.ask(wanted);
    if (!source.under_way()) continue;
    source.wait([&](int64_t place, const uint8_t* raw, int64_t size) {
      job.states[place] = raw ? score(job, raw, size, place, room) : kUnread;
    });
  }
}

}  // namespace
}  // namespace steelyard

extern "C" {

// Opens a queue of reads; 0 where the system has none.
uint64_t steelyard_open_reads(int64_t depth) {
  aio_context_t queue = 0;
  return syscall(SYS_io_setup, static_cast<unsigned>(depth), &queue) ? 0 : queue;
}

void steelyard_close_reads(uint64_t queue) { syscall(SYS_io_destroy, queue); }

// Records in `raw`; with `busy_ns`, the nanoseconds that a played drive is busy with each.
void steelyard_score_memory(const steelyard::Job* job, const uint8_t* raw, const int64_t* busy_ns,
                            int64_t first_ns, int64_t depth) {
  steelyard::Played source(*job, raw, busy_ns, first_ns);
  steelyard::score_all(*job, busy_ns ? depth : job->count, source);
}

// Records in a file, through a queue and `depth` buffers of `stride` bytes.
void steelyard_score_file(const steelyard::Job* job, int64_t file, uint64_t queue, uint8_t* buffers,
                          int64_t depth, int64_t stride) {
  steelyard::Asynchronous source(*job, static_cast<int>(file), queue, buffers, depth, stride);
  steelyard::score_all(*job, depth, source);
}
}
