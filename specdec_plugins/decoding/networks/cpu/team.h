// Threads that compute together.
//
// A team is as fast as its slowest thread, and its threads meet some hundred times in a pass. Where
// another program has a core, that core's thread is away for milliseconds, and every meeting may wait
// that long: a team is then several times slower than one thread. So its calls are timed, and one that
// waited longer than it would have taken a thread alone is followed by a time without teams. Results
// do not depend on the number of threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace specdec {

inline int64_t nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// Where the threads of a team wait for one another.
class Meeting {
 public:
  void wait(int threads) {
    const unsigned turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; looks < kLooks; ++looks)
      if (turn_.load(std::memory_order_acquire) != turn) return;
    const int64_t begin = nanoseconds();
    while (turn_.load(std::memory_order_acquire) == turn) std::this_thread::yield();
    worked(begin - nanoseconds());
  }

  void worked(int64_t time) { work_.fetch_add(time, std::memory_order_relaxed); }
  int64_t work() const { return work_.load(std::memory_order_relaxed); }

 private:
  // As a rule the others come within a microsecond; where they do not, another program has their core.
  static constexpr int kLooks = 10000;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> turn_{0};
  std::atomic<int64_t> work_{0};  // nanoseconds of all threads without what they waited
};

inline thread_local Meeting* meeting = nullptr;  // of the team that this thread is in

// Whether other programs leave this one its cores.
class Crowd {
 public:
  bool is_here() const { return until_.load(std::memory_order_relaxed) > nanoseconds(); }

  // Learns from a call of a team: how long it took, and how long its threads waited in all.
  void learn(int threads, int64_t took, int64_t waited) {
    const int64_t lost = waited / (threads - 1);
    const bool is_slow = lost > kLeast && lost > (threads - 1) * (took - lost);
    const int64_t pause = pause_.load(std::memory_order_relaxed);
    if (is_slow) until_.store(nanoseconds() + pause, std::memory_order_relaxed);
    const int64_t next = is_slow ? 2 * pause : pause - pause / 8;
    pause_.store(std::clamp(next, kShortest, kLongest), std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kLeast = 1'000'000;  // nanoseconds, less than a scheduler's turn
  // A single slow call may be chance, or parts that are unlike.
  static constexpr int64_t kShortest = 1'000'000, kLongest = 1'000'000'000;
  std::atomic<int64_t> until_{0}, pause_{kShortest};
};

inline Crowd crowd;

// Calls work(thread, threads) on every thread of a team; in a crowd, on this thread alone.
template <typename Work>
void in_team(int threads, const Work& work) {
#ifdef _OPENMP
  if (threads > 1 && !crowd.is_here()) {
    Meeting shared;
    const int64_t begin = nanoseconds();
#pragma omp parallel num_threads(threads)
    {
      meeting = &shared;
      work(omp_get_thread_num(), omp_get_num_threads());
      shared.worked(nanoseconds() - begin);
    }
    const int64_t took = nanoseconds() - begin;
    crowd.learn(threads, took, threads * took - shared.work());
    return;
  }
#endif
  (void)threads;
  work(0, 1);
}

// Calls work(row) for every row, distributed over the threads. What it throws is thrown to the
// caller, as no exception may leave a thread of a team.
template <typename Work>
void for_rows(int64_t rows, int threads, const Work& work) {
  std::exception_ptr failure;
  std::mutex mutex;
  in_team(int(std::min<int64_t>(rows, threads)), [&](int thread, int team) {
    try {
      for (int64_t row = rows * thread / team; row < rows * (thread + 1) / team; ++row) work(row);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

// Calls work(rows, part, team) for parts of rows. Each part has a thread of its own, a team of one: no
// thread waits for another between two products. Of fewer rows, the whole is one part for all threads,
// as each part reads all weights: the more threads, the more rows each needs to make up for that.
template <typename Row, typename Work>
void for_parts(const std::vector<Row*>& rows, int threads, const Work& work) {
  constexpr int64_t kLeast = 4;  // rows a thread, for each other thread
  const int64_t count = rows.size(), least = kLeast * threads * (threads - 1);
  const int64_t parts = count >= least ? threads : 1;
  if (rows.empty()) return;
  for_rows(parts, threads, [&](int64_t part) {
    const auto first = rows.begin() + count * part / parts;
    const auto stop = rows.begin() + count * (part + 1) / parts;
    work(std::vector<Row*>(first, stop), int(part), parts == 1 ? threads : 1);
  });
}

}  // namespace specdec
