#include "tests/simulation/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "tests/simulation/draw.h"

namespace firn::sim {

const char* const do_names[do_count] = {
    "allocate", "write", "read", "copy", "free", "layer", "cold", "prefetch", "pin", "unpin",
    "wait", "pump", "ponder", "trim", "spill_all", "spill_away", "stop_spilling", "set_budget",
    "give_way", "synchronize", "foreign", "touch_many", "touch_anyway", "free_held", "free_behind",
    "export_memory", "busy", "give_address", "new_stream", "end_stream", "press_host", "inject",
    "run_operator", "choose"};

namespace {

constexpr uint64_t granule = 2u << 20;

void draw_program(Draw& draw, Options& o) {
  const auto set = [&](Do what, unsigned weight, unsigned absent_in) {
    o.weight[static_cast<unsigned>(what)] = draw.one_in(absent_in) ? 0 : weight;
  };
  constexpr unsigned always = 1u << 30;
  set(Do::allocate, 120, always), set(Do::write, 120, always), set(Do::read, 200, always);
  set(Do::free, 110, always), set(Do::copy, 60, 3), set(Do::wait, 60, 8), set(Do::pump, 60, 8);
  set(Do::ponder, 4, 3), set(Do::cold, 12, 3), set(Do::prefetch, 16, 3), set(Do::pin, 5, 3);
  set(Do::unpin, 10, 3), set(Do::trim, 1, 2), set(Do::spill_all, 1, 2), set(Do::spill_away, 1, 4);
  set(Do::stop_spilling, 2, 3), set(Do::set_budget, 1, 3), set(Do::give_way, 1, 4);
  set(Do::synchronize, 4, 3), set(Do::foreign, 2, 4), set(Do::touch_many, 60, 3);
  set(Do::touch_anyway, 10, 3), set(Do::free_held, 6, 3), set(Do::free_behind, 10, 3);
  set(Do::export_memory, 1, 3), set(Do::busy, 20, 4), set(Do::give_address, 1, 3);
  set(Do::new_stream, 1, 3), set(Do::end_stream, 1, 2);
  const auto illness = 1 + static_cast<unsigned>(draw.below(12));
  if (o.host_pressed) set(Do::press_host, 4, always);
  if (o.driver_faults) set(Do::inject, illness, always);
  if (draw.one_in(2)) {  // the same again and again, as training is
    if (draw.below(3) != 0) {
      o.layers = 3 + static_cast<unsigned>(draw.below(8));
      o.weight.fill(0);
      o.period = 3 * o.layers;
      set(Do::layer, 200, always), set(Do::pump, 20, 4), set(Do::ponder, 12, 4);
      if (draw.one_in(2)) {  // and now and then something else
        set(Do::busy, 8, 3), set(Do::cold, 4, 3), set(Do::prefetch, 4, 3), set(Do::trim, 1, 3);
        set(Do::wait, 8, 3), set(Do::touch_anyway, 4, 3), set(Do::set_budget, 1, 3);
      }
      if (o.host_pressed) set(Do::press_host, 2, always);
      if (o.driver_faults) set(Do::inject, illness, always);
      if (draw.below(4) != 0) {
        o.engine.policy = Policy::lifetime;
        o.engine.places = draw.below(4) != 0 && !o.engine.guard;
      }
      o.live_bytes = std::max<uint64_t>(o.live_bytes, 4 * o.engine.budget_bytes);
    } else {
      o.period = 30 + static_cast<unsigned>(draw.below(100));
    }
  }
  for (unsigned weight : o.weight) o.weights += weight;
}

void draw_store(Draw& draw, Options& o) {
  SimulatedStoreOptions& s = o.store;
  s.seed = o.seed;
  s.latency_ns = draw.below(200'000);
  s.read_bytes_s = 1e9 + draw.part() * 9e9;
  s.write_bytes_s = 1e9 + draw.part() * 9e9;
  if (o.faults && draw.one_in(6)) s.capacity_bytes = draw.below(96) << 20;
  if (!o.faults || draw.one_in(4)) return;
  o.store_faults = true;
  const auto rate = [&](double& of, double most, unsigned absent_in = 2) {
    of = draw.one_in(absent_in) ? 0 : most * draw.part();
  };
  rate(s.write_error_rate, 0.1), rate(s.read_error_rate, 0.1), rate(s.corrupt_rate, 0.1);
  rate(s.misdirected_read_rate, 0.05), rate(s.stale_read_rate, 0.05);
  rate(s.late_rate, 0.2), rate(s.short_rate, 0.2);
  s.late_ns_most = draw.one_in(4) ? 200'000'000 : 2'000'000;
  o.lasting = draw.one_in(2);
  if (o.lasting) {
    rate(s.lasting_corrupt_rate, 0.02), rate(s.lost_write_rate, 0.01), rate(s.torn_rate, 0.01);
    rate(s.misdirected_write_rate, 0.01);
  }
  const auto window = [&](uint64_t& from, uint64_t& until, unsigned absent_in) {
    if (draw.one_in(absent_in)) return;
    from = draw.below(3'000'000'000);
    until = from + draw.below(draw.one_in(2) ? 5'000'000 : 300'000'000);
  };
  window(s.reads_fail_from_ns, s.reads_fail_until_ns, 2);
  window(s.writes_fail_from_ns, s.writes_fail_until_ns, 2);
  window(s.full_from_ns, s.full_until_ns, 2);
}

}  // namespace

Options draw_options(uint64_t seed, unsigned operations) {
  Draw draw(seed ^ 0x5eed);
  Options o;
  o.seed = seed;
  o.operations = operations;
  o.faults = draw.below(3) != 0;
  o.devices = draw.one_in(2) ? 1 : 2 + static_cast<int>(draw.below(2));
  o.streams = 1 + static_cast<unsigned>(draw.below(4));
  o.threads = draw.one_in(5) ? 2 + static_cast<unsigned>(draw.below(2)) : 1;
  EngineOptions& e = o.engine;
  e.budget_bytes = (8 + draw.below(40)) * granule;
  e.host_bytes = (12 + draw.below(60)) << 20;
  e.span_bytes = granule << draw.below(5);
  e.piece_bytes = std::min<uint64_t>(e.span_bytes, granule << draw.below(3));
  e.watch_fraction = draw.one_in(4) ? draw.part() : 0;
  e.adversarial = draw.one_in(40);
  e.guard = draw.one_in(10);
  e.poison = draw.one_in(10);
  e.no_bytes = true;
  switch (draw.below(8)) {
    case 0: case 1: case 2: e.policy = Policy::age; break;
    case 3: o.greedy = true; [[fallthrough]];
    default: e.policy = Policy::lifetime; break;
  }
  e.places = e.policy == Policy::lifetime && !o.greedy && draw.one_in(2) && !e.guard;
  e.spare_fraction = draw.one_in(2) ? 1. / 16 : draw.part() / 4;
  o.with_store = draw.below(10) != 0;
  o.gpu_bytes = e.budget_bytes + (draw.one_in(3) ? 0 : 64 * granule);
  o.call_ns = draw.one_in(2) ? 0 : draw.below(20'000);
  o.link_bytes_s = 4e9 + draw.part() * 30e9;
  o.link_latency_ns = draw.below(30'000);
  o.block_bytes_most = std::min<uint64_t>(e.budget_bytes / 4, (2 + draw.below(12)) << 20);
  o.live_bytes = e.budget_bytes * 3 / 4 + draw.below(2 * e.budget_bytes);
  if (o.faults) {
    o.driver_faults = draw.one_in(2);
    o.deaths = o.driver_faults && draw.one_in(6);
    o.refuses_host = o.driver_faults && draw.one_in(4);
    if (o.driver_faults && draw.one_in(3)) o.refused_copies = draw.part() / 10;
  }
  if (draw.one_in(3)) e.io_patience_ns = 1'000'000'000 + draw.below(59'000'000'000);
  e.host_ahead = draw.one_in(4);
  o.host_shared = draw.one_in(3);
  o.host_pressed = draw.one_in(4);
  draw_store(draw, o);
  draw_program(draw, o);
  if (seed >= seeds_with_recipes) {
    o.recipes = true;
    Draw more(seed ^ 0x7ec19e5);
    const auto set = [&](Do what, unsigned weight) {
      o.weight[static_cast<unsigned>(what)] = weight;
      o.weights += weight;
    };
    set(Do::run_operator, (o.layers > 0 ? 20 : 60) + static_cast<unsigned>(more.below(200)));
    set(Do::choose, static_cast<unsigned>(more.below(20)));
    o.engine.adversarial |= more.one_in(8);
  }
  if (!o.with_store)
    o.live_bytes = std::min(o.live_bytes, e.budget_bytes + e.host_bytes / 2);
  if (draw.one_in(4)) o.close_at = draw.below(operations + 1);
  return o;
}

std::string Options::words() const {
  static const char* const policies[] = {"age", "lifetime"};
  return fmt::format(
      "{} devices, {} streams, {} threads, budget {} MiB, host {} MiB, piece {} MiB, span {} MiB, "
      "policy {}{}{}{}{}{}{}{}{}, {}, live {} MiB, period {}, layers {}, faults:{}{}{}{}{}",
      devices, streams, threads, engine.budget_bytes >> 20, engine.host_bytes >> 20,
      engine.piece_bytes >> 20, engine.span_bytes >> 20,
      recipes ? "recipes, " : "",
      greedy ? "greedy" : policies[static_cast<unsigned>(engine.policy)],
      engine.places ? " places" : "",
      engine.guard ? " guard" : "", engine.poison ? " poison" : "",
      engine.adversarial ? " adversarial" : "", engine.host_ahead ? " ahead" : "",
      host_shared ? " shared" : "", host_pressed ? " pressed" : "", with_store ? "store" : "no store", live_bytes >> 20,
      period, layers, faults ? "" : " none", driver_faults ? " driver" : "",
      deaths ? " deaths" : refused_copies > 0 ? " copies" : "",
      store_faults ? " store" : "", lasting ? " lasting" : "");
}

}  // namespace firn::sim
