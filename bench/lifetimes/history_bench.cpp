// What one event costs History: EVENTS [PER_ITERATION]. Nanoseconds per event while the period is
// known (a training-like program), while nothing repeats, and per question; bytes per event kept.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "allocator/lifetimes/history.h"

namespace {

using namespace firn;

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Forward and backward over layers of alike sizes: 12 events a layer.
void iteration(History& history, const std::vector<Life>& weights) {
  std::vector<Life> kept;
  for (Life weight : weights) {
    kept.push_back(history.allocate(1 << 20));
    history.touch(weight, false);
    if (kept.size() > 1) history.touch(kept[kept.size() - 2], false);
    history.touch(kept.back(), true);
  }
  Life grad = history.allocate(1 << 20);
  for (size_t i = weights.size(); i-- > 0;) {
    Life next = history.allocate(1 << 20);
    history.touch(grad, false);
    history.touch(kept[i], false);
    history.touch(weights[i], true);
    history.touch(next, true);
    history.free(kept[i]);
    history.free(grad);
    grad = next;
  }
  history.free(grad);
}

}  // namespace

int main(int count, char** values) {
  uint64_t events = count > 1 ? std::strtoull(values[1], nullptr, 0) : 4'000'000;
  uint64_t per_iteration = count > 2 ? std::strtoull(values[2], nullptr, 0) : 20'000;
  {
    History history;
    std::vector<Life> weights;
    for (uint64_t i = 0; i < per_iteration / 11; ++i)
      weights.push_back(history.allocate((1 + i % 4) << 20));
    for (int i = 0; i < 3; ++i) iteration(history, weights);
    uint64_t from = history.now(), known = 0, iterations = 0;
    double begin = now_ns();
    while (history.now() < from + events) {
      iteration(history, weights);
      known += history.known();
      ++iterations;
    }
    double fed = now_ns();
    std::printf("repeating: %.1f ns per event, known at the end of %llu of %llu iterations\n",
                (fed - begin) / static_cast<double>(history.now() - from),
                (unsigned long long)known, (unsigned long long)iterations);
    uint64_t sum = 0;
    begin = now_ns();
    for (int i = 0; i < 200; ++i)
      for (Life weight : weights) sum += history.next_use(weight);
    std::printf("next_use: %.1f ns (%llu)\n",
                (now_ns() - begin) / (200.0 * static_cast<double>(weights.size())),
                (unsigned long long)sum);
    std::printf("held: %.1f MiB, %.1f bytes per event kept\n",
                static_cast<double>(history.bytes()) / 1048576,
                static_cast<double>(history.bytes()) / static_cast<double>(1 << 20));
  }
  {
    History history;
    std::mt19937_64 random(1);
    std::vector<Life> live;
    for (int i = 0; i < 1000; ++i) live.push_back(history.allocate(1 + random() % 1000));
    double begin = now_ns();
    for (uint64_t i = 0; i < events; ++i) {
      uint64_t draw = random();
      Life& life = live[(draw >> 8) % live.size()];
      if (draw % 8 == 0) {
        history.free(life);
        life = history.allocate(1 + random() % 1000);
      } else {
        history.touch(life, draw & 16);
      }
    }
    std::printf("without a period: %.1f ns per event\n",
                (now_ns() - begin) / static_cast<double>(events));
  }
}
