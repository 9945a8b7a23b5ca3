// Rows that decode together, from source tokens to a report of each round. They live here, so that
// nothing is called or copied between the passes of a round. Rules and limits are those of engine.py,
// whose other lane, of torch operations, is the slow twin.

#pragma once

#include <chrono>

#include "memory.h"

namespace specdec {

// One request.
struct Asked {
  std::vector<int64_t> source, text;  // source: without padding; text: the start token, and what is forced
  int64_t block_size, max_len, min_len, beta;
  float tau;
  std::vector<int64_t> banned;
  bool with_scores, ends_loops;
  int64_t ngram;  // size of those that occur once; 0 = any may occur again
  float penalty;  // of tokens that the text has
  Drawing drawing;
};

// What one round did to one row.
struct Report {
  enum Ending { none, ended, full, failed, looped };
  int row;
  std::vector<int64_t> drafted, emitted;
  int64_t accepted;
  int ending;
  std::vector<double> log_probs;  // of what was emitted, if asked for
  int64_t length;  // of the text now
};

// A block drafter.
struct Drafting {
  std::shared_ptr<BlockDrafter> network;
  Reader encoder;
  std::vector<Packed> keys_values;  // for each layer, and for the head
  Types starts, types, common;      // see list_types
  std::shared_ptr<Choices> choices;
  int64_t longest, max_positions;   // of a block; of a prefix and its block
};

// Drafts what followed the same tokens earlier, in the source or in the text: LookupDrafter.
struct Lookup {
  static constexpr int64_t nothing = -1;
  std::vector<int64_t> to_target;  // of a source's type, `nothing` where it has none; empty = the same
  int64_t least, most;             // tokens that must match, and that are compared

  std::vector<int64_t> draft(const std::vector<int64_t>& source, const std::vector<int64_t>& text,
                             int64_t budget) const {
    std::vector<int64_t> all;
    for (int64_t token : source) all.push_back(to_target.empty() ? token : to_target.at(token));
    all.push_back(nothing);  // no match runs from one into the other
    all.insert(all.end(), text.begin() + 1, text.end());
    const auto matches = [&](size_t at) {
      int64_t count = 0;
      while (count < most && count < int64_t(std::min(at, text.size() - 1)) &&
             all[at - 1 - count] == text[text.size() - 1 - count])
        ++count;
      return all[at] == nothing ? 0 : count;
    };
    int64_t longest = least - 1;
    auto first = all.end();
    for (size_t at = 0; at < all.size(); ++at)
      if (const int64_t count = matches(at); count > longest) longest = count, first = all.begin() + at;
    const auto last = first + std::min<int64_t>(budget, all.end() - first);
    return {first, std::find(first, last, nothing)};
  }
};

// What a session decides.
struct Rules {
  int64_t eos;
  bool tolerates;       // beta and tau of a row hold
  bool samples;         // rows draw their tokens, but those that keep only the best
  int64_t most_rows;    // that draft, unless their texts depend on drafts
  bool shares_encoder;  // the drafter reads the verifier's states
  int candidates;       // of a position, 0 = all listed
  float confidence;     // at which drafts stop, 0 = never
  std::vector<std::vector<int64_t>> banned;  // words: of each the last token, after the others
  std::vector<int64_t> banned_first;
  int64_t num_opening;  // tokens of a text before which `banned_first` holds
  int64_t forced_last;  // the token at the greatest length; -1 = none
};

class Lane {
 public:
  // With neither a drafter nor a lookup every round is a plain step.
  Lane(std::shared_ptr<Verifying> verifier, std::shared_ptr<Drafting> drafter,
       std::shared_ptr<Lookup> lookup, Rules rules)
      : verifier_(std::move(verifier)),
        drafter_(std::move(drafter)),
        lookup_(std::move(lookup)),
        rules_(std::move(rules)) {}

  // Seconds of parts: encoding, drafting, verifying, and the rest.
  std::vector<double> seconds = std::vector<double>(4);

  void admit(std::vector<Asked> joining, int threads) {
    const Timer timer(seconds[0]);
    const size_t before = rows_.size();
    for (Asked& asked : joining) {
      Row row;
      row.asked = std::move(asked);
      row.text = row.asked.text;
      rows_.push_back(std::move(row));
    }
    std::vector<Row*> rows;
    for (size_t i = before; i < rows_.size(); ++i) rows.push_back(&rows_[i]);
    open(rows);
    const Memory states = encode(verifier_->encoder, sources_of(rows), threads);
    remember(verifier_->keys_values, states.get(), rows, &Row::source, threads);
    const float* first = states.get();
    for (Row* row : rows) {
      if (drafter_ && rules_.shares_encoder) row->states = Memory(states, const_cast<float*>(first));
      first += row->width() * verifier_->encoder.stack->dim();
    }
    plan_budgets();
  }

  // Keeps these rows, in this order.
  void select(const std::vector<int>& kept) {
    std::vector<Row> rows;
    for (int row : kept) rows.push_back(std::move(rows_.at(row)));
    rows_ = std::move(rows);
  }

  void stop(int row) { rows_.at(row).is_active = false; }

  // Rounds until a row ends, at most so many.
  std::vector<Report> run(int most, int threads) {
    std::vector<Report> reports;
    for (bool goes_on = true; most > 0 && goes_on; --most) {
      draft(threads);
      score(threads);
      const Timer timer(seconds[3]);
      const size_t first = reports.size();
      for (size_t row = 0; row < rows_.size(); ++row)
        if (rows_[row].is_active) reports.push_back({int(row), {}, {}, 0, 0, {}, 0});
      for_rows(reports.size() - first, threads, [&](int64_t i) { conclude(reports[first + i]); });
      plan_budgets();
      goes_on = reports.size() > first;
      for (size_t i = first; i < reports.size(); ++i) goes_on &= reports[i].ending == Report::none;
    }
    return reports;
  }

 private:
  struct Row {
    Asked asked;
    std::vector<int64_t> text;  // committed tokens, the start token first
    bool is_active = true;
    int64_t budget = 0;  // tokens of the next draft
    Memory states;  // of the verifier's encoder, until the drafter has read them
    bool has_joined = false;  // the drafter
    SourceMemory source, drafter_source, copied;
    OwnMemory own, drafter_own;
    int64_t cached = 0, drafter_cached = 0;  // tokens of the text there; the drafter reads no start
    Packed listed;                           // what may be drafted
    std::vector<int64_t> drafted;
    float* logits = nullptr;  // [drafted + 1, V]

    int width() const { return int(asked.source.size()); }
  };

  // Adds the time of a block to a part.
  struct Timer {
    using Clock = std::chrono::steady_clock;
    explicit Timer(double& sum) : sum(sum) {}
    ~Timer() { sum += std::chrono::duration<double>(Clock::now() - start).count(); }
    double& sum;
    const Clock::time_point start = Clock::now();
  };

  static std::vector<const std::vector<int64_t>*> sources_of(const std::vector<Row*>& rows) {
    std::vector<const std::vector<int64_t>*> sources;
    for (const Row* row : rows) sources.push_back(&row->asked.source);
    return sources;
  }

  static void remember(const std::vector<Packed>& products, const float* states,
                       const std::vector<Row*>& rows, SourceMemory Row::*kept, int threads) {
    const auto found = specdec::remember(products, states, sources_of(rows), threads);
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->*kept = found[i];
  }

  // Memory for the texts of rows, most of which are about as long as their sources; side by side, for
  // large pages.
  void open(const std::vector<Row*>& rows) const {
    const Stack& stack = *verifier_->decoder.stack;
    const auto room_of = [](const Row* row) { return row->width() + 16; };
    const int64_t width = stack.cached(), each = stack.size() * width;
    int64_t count = 0;
    for (const Row* row : rows) count += room_of(row);
    Memory next = memory_of(count * each);
    for (Row* row : rows) {
      row->own.open(next, room_of(row), width);
      next = Memory(next, next.get() + room_of(row) * each);
    }
  }

  // Lets rows join the drafter, at their first draft.
  void join(const std::vector<Row*>& drafting, int threads) {
    std::vector<Row*> rows;
    int64_t count = 0;
    for (Row* row : drafting)
      if (!row->has_joined) rows.push_back(row), count += row->width();
    if (rows.empty()) return;
    const Timer timer(seconds[0]);
    for (Row* row : rows) {
      row->has_joined = true;
      row->listed = list(row->asked.source);
    }
    const Memory states = rules_.shares_encoder ? gathered(rows, count)
                                                : encode(drafter_->encoder, sources_of(rows), threads);
    remember(drafter_->keys_values, states.get(), rows, &Row::drafter_source, threads);
    if (!drafter_->network->queries) return;
    const Tables& tables = drafter_->encoder.tables;
    const int64_t width = tables.tokens.size(1);
    const Memory copied = memory_of(2 * count * width);
    float *keys = copied.get(), *values = keys + count * width;
    for (Row* row : rows) {
      std::vector<int64_t> positions(row->width());
      std::iota(positions.begin(), positions.end(), 0);
      drafter_->encoder.embed(row->asked.source, positions, keys);
      for (int64_t token : row->asked.source) {
        tables.tokens.copy(token, values);
        values += width;
      }
      row->copied = {copied, keys, count * width, row->width()};
      keys += row->width() * width;
    }
  }

  // The verifier's states of some rows, [M, D], which are then let go.
  Memory gathered(const std::vector<Row*>& rows, int64_t count) const {
    const int64_t dim = verifier_->encoder.stack->dim();
    const Memory states = memory_of(count * dim);
    float* out = states.get();
    for (Row* row : rows) {
      out = std::copy_n(row->states.get(), row->width() * dim, out);
      row->states.reset();
    }
    return states;
  }

  Packed list(const std::vector<int64_t>& source) const {
    std::vector<int32_t> types(drafter_->network->tables.tokens.size(0));
    const int64_t count = types.size(), ids = source.size();
    const int64_t listed = list_types({source.data(), {ids}, 0, {}}, drafter_->starts,
                                      drafter_->types, drafter_->common,
                                      {types.data(), {count}, 0, {}});
    return drafter_->choices->pick({types.data(), {listed}, 0, {}});
  }

  // What the places of a row see: its own tokens and its source.
  static void hold(Plan& plan, const std::vector<Row*>& rows, OwnMemory Row::*own,
                   SourceMemory Row::*source, const Stack& stack) {
    plan.rows = int(rows.size());
    for (int layer = 0; layer < stack.size(); ++layer)
      for (Row* row : rows) {
        plan.caches.push_back((row->*own).layer(layer));
        plan.sources.push_back((row->*source).layer(layer));
      }
  }

  void draft(int threads) {
    std::vector<Row*> rows;
    int64_t length = 0;
    for (Row& row : rows_) {
      row.drafted.clear();
      if (row.is_active && row.budget > 0) rows.push_back(&row), length = std::max(length, row.budget);
    }
    if (rows.empty()) return;
    if (lookup_) {
      const Timer timer(seconds[1]);
      for (Row* row : rows) row->drafted = lookup_->draft(row->asked.source, row->text, row->budget);
      return;
    }
    join(rows, threads);
    const Timer timer(seconds[1]);
    const BlockDrafter& network = *drafter_->network;
    const Stack& stack = *network.stack;
    Plan plan;
    std::vector<int64_t> tokens, positions, before;
    std::vector<SourceStates> read;
    std::vector<Attended> copied;
    std::vector<Packed> lists;
    for (Row* row : rows) {
      const int64_t known = int64_t(row->text.size()) - 1;  // less the start token
      const int64_t room = std::max<int64_t>(drafter_->max_positions - known, 1);
      const int64_t masks = std::min(
          std::clamp<int64_t>(row->asked.block_size, 1, drafter_->longest), room);
      row->drafter_own.reserve(stack.size(), known + masks, stack.cached());
      const auto add = [&](int64_t token, int64_t position, int64_t width) {
        plan.places.push_back({int(before.size()), position, int(width), nullptr});
        tokens.push_back(token);
        positions.push_back(position);
      };
      for (int64_t at = row->drafter_cached; at < known; ++at) add(row->text[at + 1], at, at + 1);
      const int64_t first = tokens.size();
      for (int64_t i = 0; i < masks; ++i) add(network.mask, known + i, known + masks);
      for (int64_t i = 0; i < length; ++i) plan.asked.push_back(first + std::min(i, masks - 1));
      row->drafter_cached = known;
      before.push_back(row->text.back());
      lists.push_back(row->listed);
      const auto& [all, keys, stride, width] = row->copied;
      const int64_t dim = stack.dim();
      if (network.queries) copied.push_back({keys, keys + stride, dim, nullptr, width});
      if (network.head->heads) read.push_back(row->drafter_source.layer(stack.size()));
    }
    hold(plan, rows, &Row::drafter_own, &Row::drafter_source, stack);
    const int64_t count = tokens.size(), dim = stack.dim(), num_rows = rows.size();
    Owned<float, 2> x(count, dim), places(count, dim);
    Owned<float, 3> states(num_rows, length, dim);
    network.embed_block(plan.places, tokens.data(), positions.data(), copied, x.values.data(),
                        places.values.data());
    stack.follow(plan, x.values.data(), places.values.data(), {0, stack.size()},
                 states.values.data(), threads);
    Owned<int64_t, 2> drafted(num_rows, length);
    Owned<float, 2> confidences(num_rows, length);
    walk_blocks({states.read(), {}, lists, {before.data(), {num_rows}, 0, {}}, network.tables.tokens},
                *network.head, read, rules_.candidates,
                {drafted.written(), confidences.written()}, threads);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t* own = drafted.values.data() + i * length;
      const float* sure = confidences.values.data() + i * length;
      int64_t kept = 0;
      const float least = rules_.confidence;
      while (kept < rows[i]->budget && (least == 0 || sure[kept] >= least)) ++kept;
      rows[i]->drafted.assign(own, own + up_to_eos(own, kept, rules_.eos));
    }
  }

  // The verifier's pass over what it has not read of each text, and the draft.
  void score(int threads) {
    const Timer timer(seconds[2]);
    const Stack& stack = *verifier_->decoder.stack;
    Plan plan;
    std::vector<int64_t> tokens, positions;
    std::vector<Row*> rows;
    for (Row& row : rows_) {
      if (!row.is_active) continue;
      const int64_t known = row.text.size(), drafted = row.drafted.size();
      row.own.reserve(stack.size(), known + drafted, stack.cached());
      for (int64_t at = row.cached; at < known + drafted; ++at) {
        if (at >= known - 1) plan.asked.push_back(tokens.size());
        plan.places.push_back({int(rows.size()), at, int(at) + 1, nullptr});
        tokens.push_back(at < known ? row.text[at] : row.drafted[at - known]);
        positions.push_back(at);
      }
      rows.push_back(&row);
    }
    if (rows.empty()) return;
    hold(plan, rows, &Row::own, &Row::source, stack);
    const int64_t asked = plan.asked.size(), width = verifier_->output->linear.out;
    if (plan.asked.size() == tokens.size()) plan.asked.clear();
    states_.grow(asked * stack.dim());
    logits_.grow(asked * width);
    verifier_->decoder.read(plan, tokens, positions, states_.data, threads);
    verifier_->output->multiply(matrix<const float>(states_.data, asked, stack.dim()),
                               matrix(logits_.data, asked, width), threads);
    float* logits = logits_.data;
    for (Row* row : rows) {
      row->logits = logits;
      logits += (row->drafted.size() + 1) * width;
    }
  }

  // Bans tokens from the logits of the token after a row's text, which has what was emitted since.
  void constrain(const Row& row, const std::vector<int64_t>& text, float* logits,
                 int64_t width) const {
    const auto ban = [&](int64_t token) { logits[token] = -INFINITY; };
    const int64_t length = text.size(), ngram = row.asked.ngram;
    if (row.asked.penalty != 1) penalise(text, row.asked.penalty, logits, width);
    const auto ends_like = [&](const int64_t* first, int64_t count) {
      return count <= length && std::equal(first, first + count, text.data() + length - count);
    };
    for (int64_t at = ngram - 1; ngram && at < length; ++at)
      if (ends_like(text.data() + at - ngram + 1, ngram - 1)) ban(text[at]);
    if (length - 1 < row.asked.min_len) ban(rules_.eos);
    for (const std::vector<int64_t>& word : rules_.banned)
      if (ends_like(word.data(), int64_t(word.size()) - 1)) ban(word.back());
    for (int64_t token : row.asked.banned) ban(token);
    if (length == rules_.num_opening)
      for (int64_t token : rules_.banned_first) ban(token);
    if (rules_.forced_last < 0 || length != row.asked.max_len) return;
    std::fill_n(logits, width, -INFINITY);
    logits[rules_.forced_last] = 0;
  }

  // Makes tokens of a text less likely, each once: `_penalise` of constraints.py.
  static void penalise(std::vector<int64_t> text, float penalty, float* logits, int64_t width) {
    std::sort(text.begin(), text.end());
    text.erase(std::unique(text.begin(), text.end()), text.end());
    for (int64_t token : text) {
      check_token(token, width);
      logits[token] = logits[token] < 0 ? logits[token] * penalty : logits[token] / penalty;
    }
  }

  bool draws(const Row& row) const { return rules_.samples && row.asked.drawing.top_k != 1; }

  bool accepts(const Row& row, int64_t token, int64_t best, const float* logits, int width) const {
    if (token == best) return true;
    if (!rules_.tolerates || row.asked.beta == 1) return false;
    const float gap = logits[best] - logits[token];
    return gap <= row.asked.tau && gap < INFINITY &&
           best_isa().rank_of(logits, width, token) < row.asked.beta;
  }

  // Judges the draft of a row, and extends its text.
  void conclude(Report& report) {
    Row& row = rows_[report.row];
    const int width = verifier_->output->linear.out;
    const int64_t length = row.text.size(), room = row.asked.max_len - (length - 1);
    report.drafted = row.drafted;
    bool is_failed = false;
    std::vector<int64_t> text = row.text;
    while (true) {
      const int64_t at = report.emitted.size();
      float* logits = row.logits + at * width;
      constrain(row, text, logits, width);
      const auto [best, is_finite] = best_isa().best_of(logits, width);
      const int64_t drafted = at < int64_t(row.drafted.size()) ? row.drafted[at] : -1;
      int64_t token = best;
      if (draws(row) && is_finite)
        token = drawn(row.asked.drawing, logits, width, length + at, drafted);
      else if (drafted >= 0 && accepts(row, drafted, best, logits, width))
        token = drafted;
      report.emitted.push_back(token);
      text.push_back(token);
      if (token == drafted) continue;
      is_failed = !is_finite;
      report.accepted = at;
      break;
    }
    if (is_failed) {
      report.emitted.clear();
      report.accepted = 0;
      report.ending = Report::failed;
    } else {
      const int64_t wanted = up_to_eos(report.emitted.data(), report.emitted.size(), rules_.eos);
      report.emitted.resize(std::min(wanted, room));
      report.accepted = std::min<int64_t>(report.accepted, report.emitted.size());
      const int64_t kept = report.emitted.size();
      if (report.emitted.back() == rules_.eos) report.ending = Report::ended;
      else if (kept == room) report.ending = Report::full;
      if (row.asked.ends_loops) end_loop(row.text, report);
    }
    for (size_t at = 0; row.asked.with_scores && at < report.emitted.size(); ++at) {
      const float* logits = row.logits + at * width;
      const double total = best_isa().log_total_of(logits, width);
      report.log_probs.push_back(logits[report.emitted[at]] - total);
    }
    row.text.insert(row.text.end(), report.emitted.begin(), report.emitted.end());
    row.cached = int64_t(row.text.size()) - 1;
    row.is_active = report.ending == Report::none;
    report.length = row.text.size();
  }

  // Cuts what was emitted where it becomes a loop: `loop_end` of extend.py.
  static void end_loop(const std::vector<int64_t>& text, Report& report) {
    constexpr int64_t kLongestPeriod = 8, kMostTimes = 5;
    std::vector<int64_t> ids(text.begin() + 1, text.end());  // less the start token
    for (size_t i = 0; i < report.emitted.size(); ++i) {
      ids.push_back(report.emitted[i]);
      const int64_t stop = ids.size();
      for (int64_t period = 1; period <= std::min(kLongestPeriod, stop / (kMostTimes + 1)); ++period)
        if (std::equal(ids.end() - kMostTimes * period, ids.end(),
                       ids.end() - (kMostTimes + 1) * period)) {
          report.emitted.resize(i + 1);
          report.accepted = std::min<int64_t>(report.accepted, i + 1);
          report.ending = Report::looped;
          return;
        }
    }
  }

  // How much each row drafts next: within all limits.
  void plan_budgets() {
    const bool is_able = drafter_ || lookup_;
    const bool drafts = int64_t(rows_.size()) <= rules_.most_rows;
    for (Row& row : rows_) {
      const bool is_greedy = (!rules_.tolerates || row.asked.beta == 1) && !draws(row);
      const int64_t known = int64_t(row.text.size()) - 1;
      int64_t room = row.asked.max_len - 1;
      if (drafter_) room = std::min(room, drafter_->max_positions);
      const int64_t wanted = is_able && (drafts || !is_greedy) ? row.asked.block_size : 0;
      row.budget = row.is_active ? std::max<int64_t>(std::min(wanted, room - known), 0) : 0;
    }
  }

  const std::shared_ptr<Verifying> verifier_;
  const std::shared_ptr<Drafting> drafter_;
  const std::shared_ptr<Lookup> lookup_;
  const Rules rules_;
  std::vector<Row> rows_;
  Aligned<float> states_, logits_;  // of the last pass
};

}  // namespace specdec
