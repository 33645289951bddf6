#include "allocator/lifetimes/waits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace firn::lifetimes {

namespace {

constexpr int64_t iterations = 2;  // looked at together; the last counts

/// Bytes alive between two uses of a value. Operators' numbers: `read` may lie in the next
/// iteration, `made` in the one before or longer ago.
struct Span {
  int64_t made, used, read;
  double bytes;
};

/// The bytes that each operator uses, and those alive between uses.
struct Uses {
  explicit Uses(const Operators& operators);
  int64_t count() const { return static_cast<int64_t>(used.size()); }
  std::vector<double> used;
  std::vector<Span> spans;
};

Uses::Uses(const Operators& operators) : used(operators.count()) {
  struct Seen {
    int64_t first = -1, last = -1, made = 0, written = -1;
    bool first_reads = false;
  };
  const int64_t n = count();
  std::vector<Seen> seen(operators.values.size());
  for (int64_t i = 0; i < n; ++i)
    for (const uint32_t value : operators.writes(operators.operators[static_cast<size_t>(i)]))
      seen[value].written = i;
  const auto alive = [&](uint32_t value, int64_t read) {
    const Seen& of = seen[value];
    if (read > of.last + 1)
      spans.push_back(
          {of.made, of.last, read, static_cast<double>(operators.values[value].bytes)});
  };
  for (int64_t i = 0; i < n; ++i) {
    const Operator& one = operators.operators[static_cast<size_t>(i)];
    for (size_t u = 0; const uint32_t value : operators.named(one)) {
      Seen& of = seen[value];
      const bool reads = u++ < one.reads;
      if (of.last == i && of.first < i) continue;  // reads and writes it
      if (of.first < 0) {
        of.first = of.last = i;
        of.first_reads = reads;
        // A value that nobody writes has been valid elsewhere for ever.
        of.made = of.written < 0 ? -2 * n : of.written - n;
        if (!operators.values[value].persistent) of.made = i;
      } else if (of.last == i) {
        continue;
      } else if (reads) {
        alive(value, i);  // what is written and not read next need not be kept
      }
      of.last = i;
      used[static_cast<size_t>(i)] += static_cast<double>(operators.values[value].bytes);
    }
    for (const uint32_t value : operators.writes(one)) seen[value].made = i;
  }
  for (uint32_t value = 0; value < seen.size(); ++value)
    if (operators.values[value].persistent && seen[value].first_reads)
      alive(value, seen[value].first + n);
}

/// Operators that are looked at: of stretches alike in time and number, the one that uses and keeps
/// most.
std::vector<int64_t> choose_samples(const Uses& uses, const std::vector<double>& begins,
                                    uint32_t most) {
  const int64_t n = uses.count();
  std::vector<double> alive(static_cast<size_t>(n) + 1);
  for (const Span& span : uses.spans)
    for (const int64_t shift : {int64_t{0}, -n}) {
      const int64_t from = std::clamp<int64_t>(span.used + 1 + shift, 0, n),
                    to = std::clamp<int64_t>(span.read + shift, 0, n);
      alive[static_cast<size_t>(from)] += span.bytes;
      alive[static_cast<size_t>(to)] -= span.bytes;
    }
  std::vector<int64_t> samples;
  double sum = 0, best = -1;
  int64_t stretch = -1;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    sum += alive[at];
    const double of_time = begins[at] / begins.back(),
                 of_number = static_cast<double>(i) / static_cast<double>(n);
    const auto in = static_cast<int64_t>((of_time + of_number) / 2 * most);
    if (in != stretch) {
      samples.push_back(i);
      best = -1;
      stretch = in;
    }
    if (sum + uses.used[at] <= best) continue;
    best = sum + uses.used[at];
    samples.back() = i;
  }
  return samples;
}

/// Spans in the order of an operator of theirs.
class ByOperator {
 public:
  ByOperator() = default;
  template <class Of>
  ByOperator(const std::vector<Span>& spans, int64_t operators, Of&& of)
      : at_(static_cast<size_t>(operators) + 1), spans_(spans.size()) {
    for (const Span& span : spans) ++at_[static_cast<size_t>(of(span)) + 1];
    std::partial_sum(at_.begin(), at_.end(), at_.begin());
    std::vector<uint32_t> next(at_);
    for (const Span& span : spans) spans_[next[static_cast<size_t>(of(span))]++] = span;
  }
  std::span<const Span> at(int64_t one) const {
    const auto i = static_cast<size_t>(one);
    return std::span(spans_).subspan(at_[i], at_[i + 1] - at_[i]);
  }

 private:
  std::vector<uint32_t> at_;
  std::vector<Span> spans_;
};

/// The sums of what is alive, by when it was made and by when it is read, and the waits that are
/// proven. Sample q of iteration i has the number (i + 1) * samples + q, an operator likewise.
class WaitsRun {
 public:
  WaitsRun(const Operators& operators, const WaitsMachine& machine, uint32_t samples)
      : machine_(machine), uses_(operators), n_(uses_.count()) {
    begins_.push_back(0);
    for (const Operator& one : operators.operators)
      begins_.push_back(begins_.back() + static_cast<double>(one.ns));
    samples_ = choose_samples(uses_, begins_, samples);
    m_ = static_cast<int64_t>(samples_.size());
    index();
  }

  double run() {
    if (uses_.used.empty()) return 0;
    if (*std::max_element(uses_.used.begin(), uses_.used.end()) >
        static_cast<double>(machine_.budget))
      return std::numeric_limits<double>::infinity();
    for (const Span& span : uses_.spans)
      if (span.read >= n_ && span.used + 1 < n_) count(span, 0, 1);
    int64_t sample = 0;
    for (int64_t at = n_ - 1; at < (iterations + 1) * n_; ++at) {
      const int64_t one = at % n_;
      if (at >= n_)
        for (const Span& span : ends_.at(one)) count(span, at - span.read, -1);
      if (at >= n_ && samples_[static_cast<size_t>(sample % m_)] == one) {
        look(m_ + sample);
        ++sample;
      }
      for (const Span& span : begins_at_.at(one)) count(span, at - span.used, 1);
    }
    const double last = waits_.back(), before = waits_[waits_.size() - 1 - static_cast<size_t>(m_)];
    return std::isfinite(last) ? last - before : last;
  }

 private:
  void index() {
    const auto n = static_cast<size_t>(n_);
    floor_.resize(n);
    ceil_.resize(n);
    for (int64_t i = 0, q = 0; i < n_; ++i) {
      const auto at = static_cast<size_t>(i);
      ceil_[at] = q;
      if (q < m_ && samples_[static_cast<size_t>(q)] == i) ++q;
      floor_[at] = q - 1;
    }
    ends_ = ByOperator(uses_.spans, n_, [this](const Span& span) { return span.read % n_; });
    begins_at_ = ByOperator(uses_.spans, n_, [](const Span& span) { return span.used; });
    const auto samples = static_cast<size_t>((iterations + 3) * m_);
    by_made_.assign(samples, 0);
    by_read_.assign(samples, 0);
    waits_.assign(static_cast<size_t>((iterations + 1) * m_) + 1, 0);
  }

  void count(const Span& span, int64_t base, double sign) {
    const int64_t made = std::max<int64_t>(span.made + base, 0), read = span.read + base;
    const int64_t by_made = made / n_ * m_ + floor_[static_cast<size_t>(made % n_)],
                  by_read = read / n_ * m_ + ceil_[static_cast<size_t>(read % n_)];
    by_made_[static_cast<size_t>(std::max<int64_t>(by_made, 0))] += sign * span.bytes;
    by_read_[static_cast<size_t>(by_read)] += sign * span.bytes;
    alive_ += sign * span.bytes;
  }

  double begin_ns(int64_t sample, int64_t after) const {
    const int64_t one = samples_[static_cast<size_t>(sample % m_)] + after;
    return static_cast<double>(sample / m_) * begins_.back() + begins_[static_cast<size_t>(one)];
  }

  double takes_ns(double bytes, double store) const {
    const double beyond = bytes - static_cast<double>(machine_.host);
    double ns = 1e9 * bytes / machine_.link;
    if (beyond > 0)
      ns = store > 0 ? std::max(ns, 1e9 * beyond / store) : std::numeric_limits<double>::infinity();
    return ns;
  }

  void look(int64_t at) {
    const auto waits = [&](int64_t sample) -> double& {
      return waits_[static_cast<size_t>(sample)];
    };
    waits(at + 1) = std::max(waits(at + 1), waits(at));
    const double over = uses_.used[static_cast<size_t>(samples_[static_cast<size_t>(at % m_)])] -
                        static_cast<double>(machine_.budget);
    if (over + alive_ <= 0) return;
    double bytes = over;
    for (int64_t j = at - 1; j >= std::max(at - m_, m_); --j) {
      bytes += by_made_[static_cast<size_t>(j)];
      if (bytes <= 0) continue;
      waits(at + 1) = std::max(waits(at + 1), waits(j + 1) + takes_ns(bytes, machine_.write) -
                                                  (begin_ns(at, 0) - begin_ns(j, 1)));
    }
    bytes = over;
    const double since = waits(at + 1) + begin_ns(at, 1);
    for (int64_t k = at + 1; k <= std::min(at + m_, (iterations + 1) * m_ - 1); ++k) {
      bytes += by_read_[static_cast<size_t>(k)];
      if (bytes <= 0) continue;
      waits(k + 1) =
          std::max(waits(k + 1), since + takes_ns(bytes, machine_.read) - begin_ns(k, 0));
    }
  }

  const WaitsMachine machine_;
  const Uses uses_;
  const int64_t n_;
  int64_t m_ = 0;
  std::vector<double> begins_;                       // per operator, and the end
  std::vector<int64_t> samples_;                     // operators
  std::vector<int64_t> floor_, ceil_;                // per operator: samples beside it
  ByOperator ends_, begins_at_;                      // the spans of an operator
  std::vector<double> by_made_, by_read_, waits_;    // per sample
  double alive_ = 0;
};

}  // namespace

double least_waits_ns(const Operators& operators, const WaitsMachine& machine, uint32_t samples) {
  return WaitsRun(operators, machine, samples).run();
}

}  // namespace firn::lifetimes
