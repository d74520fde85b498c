// Seconds of a step by part, for a caller that asks for them.
#pragma once

#include <time.h>

// In the order of `PARTS` in steps.py.
enum class Part { EMBEDDING, NORMS, QKV, PLACE, ATTENTION, OUT, UP, ACTIVATION, DOWN, HEAD };

// The stopwatch of one thread; without a place to write to, a lap is a branch never taken.
class Laps {
   public:
    explicit Laps(double* seconds) : seconds_(seconds) {
        if (seconds_) last_ = now();
    }

    // Counts the time since the last lap as that of a part.
    void end(Part part) {
        if (!seconds_) return;
        const double time = now();
        seconds_[(int)part] += time - last_;
        last_ = time;
    }

   private:
    static double now() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    }

    double* const seconds_;
    double last_ = 0;
};
