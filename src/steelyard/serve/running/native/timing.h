// Seconds of a step by part, for a caller that asks for them.
#pragma once

#include <chrono>

// In the order of `PARTS` in steps.py.
enum Part { EMBEDDING, NORMS, QKV, PLACE, ATTENTION, OUT, UP, ACTIVATION, DOWN, HEAD };

// The stopwatch of one thread; without a place to write to, a lap is a branch never taken.
class Laps {
   public:
    explicit Laps(double* seconds) : seconds_(seconds) {
        if (seconds_) last_ = Clock::now();
    }

    // Counts the time since the last lap as that of a part.
    void end(Part part) {
        if (!seconds_) return;
        const Clock::time_point now = Clock::now();
        seconds_[part] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

   private:
    using Clock = std::chrono::steady_clock;
    double* const seconds_;
    Clock::time_point last_;
};
