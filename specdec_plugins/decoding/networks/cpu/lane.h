// Rows that decode together, from source tokens to a report of each round. They live here, so that
// nothing is called or copied between the passes of a round. Rules and limits are those of engine.py,
// whose other lane, of torch operations, is the slow twin.

#pragma once

#include <chrono>

#include "drafts.h"

namespace specdec {

// What a session decides.
struct Rules {
  int64_t eos;
  bool tolerates;       // beta and tau of a row hold
  bool samples;         // rows draw their tokens, but those that keep only the best
  int64_t most_rows;    // that draft, unless their texts depend on drafts
  std::vector<std::vector<int64_t>> banned;  // words: of each the last token, after the others
  std::vector<int64_t> banned_first;
  int64_t num_opening;  // tokens of a text before which `banned_first` holds
  int64_t forced_last;  // the token at the greatest length; -1 = none
};

class Lane {
 public:
  // Without a drafter every round is a plain step.
  Lane(std::shared_ptr<Verifying> verifier, std::shared_ptr<Drafter> drafter, Rules rules)
      : verifier_(std::move(verifier)), drafter_(std::move(drafter)), rules_(std::move(rules)) {}

  // Seconds of parts: encoding, drafting, verifying, and the rest.
  std::vector<double> seconds = std::vector<double>(4);

  void admit(std::vector<Asked> joining, int threads) {
    const Timer timer(seconds[0]);
    const size_t before = rows_.size();
    for (Asked& asked : joining) {
      Row row;
      row.asked = std::move(asked);
      row.text = row.asked.text;
      row.is_greedy = (!rules_.tolerates || row.asked.beta == 1) && !draws(row);
      rows_.push_back(std::move(row));
    }
    std::vector<Row*> rows;
    for (size_t i = before; i < rows_.size(); ++i) rows.push_back(&rows_[i]);
    for_parts(rows, threads, [&](const std::vector<Row*>& own, int, int team) { read(own, team); });
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
    rooms_.resize(std::max<size_t>(rooms_.size(), threads));
    for (bool goes_on = true; most > 0 && goes_on; --most) {
      std::vector<Row*> rows;
      bool drafts = false;  // all rows join with the first that does, in whatever part they are
      for (Row& row : rows_) {
        row.drafted.clear();
        if (row.is_active) rows.push_back(&row), drafts |= row.budget > 0;
      }
      for_parts(rows, threads, [&](const std::vector<Row*>& own, int part, int team) {
        Room& room = rooms_[part];
        if (drafts) draft(own, room, team);
        score(own, room, team);
        const Timer timer(room.seconds[3]);
        for_rows(own.size(), team, [&](int64_t i) { conclude(*own[i]); });
      });
      goes_on = !rows.empty();
      for (Row* row : rows) {
        goes_on &= row->report.ending == Report::none;
        row->report.row = int(row - rows_.data());
        reports.push_back(std::move(row->report));
      }
      plan_budgets();
    }
    for (size_t part = 0; part < seconds.size(); ++part)  // the others work at the same time
      seconds[part] += std::exchange(rooms_[0].seconds[part], 0.0);
    return reports;
  }

 private:
  // What a pass over a part of the rows gives, and how long its parts took, as `seconds`.
  struct Room {
    Verified verified;
    std::vector<double> seconds = std::vector<double>(4);
  };

  // Adds the time of a block to a part.
  struct Timer {
    using Clock = std::chrono::steady_clock;
    explicit Timer(double& sum) : sum(sum) {}
    ~Timer() { sum += std::chrono::duration<double>(Clock::now() - start).count(); }
    double& sum;
    const Clock::time_point start = Clock::now();
  };

  // Reads the sources of rows that join.
  void read(const std::vector<Row*>& rows, int threads) const {
    open(rows);
    const auto sources = sources_of(rows);
    const Memory states = encode(verifier_->encoder, sources, threads);
    remember(verifier_->keys_values, states.get(), sources, rows, &Row::source, threads);
    const float* first = states.get();
    for (Row* row : rows) {
      if (drafter_ && drafter_->shares_encoder) row->encoded = Memory(states, const_cast<float*>(first));
      first += row->width() * verifier_->encoder.stack->dim();
    }
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

  void draft(const std::vector<Row*>& rows, Room& room, int threads) const {
    {
      const Timer timer(room.seconds[0]);
      drafter_->join(rows, threads);
    }
    const Timer timer(room.seconds[1]);
    std::vector<Row*> drafting;
    for (Row* row : rows)
      if (row->budget > 0) drafting.push_back(row);
    if (!drafting.empty()) drafter_->draft(drafting, threads);
  }

  void score(const std::vector<Row*>& rows, Room& room, int threads) const {
    const Timer timer(room.seconds[2]);
    room.verified.read(*verifier_, rows, verifier_->decoder.stack->size(), false, threads);
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
  void conclude(Row& row) const {
    Report& report = row.report = {};
    const int width = verifier_->output->linear.out;
    const int64_t length = row.text.size(), room = row.asked.max_len - (length - 1);
    const int64_t dim = verifier_->decoder.stack->dim();
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
      row.state.assign(row.states + at * dim, row.states + (at + 1) * dim);
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
    const bool drafts = int64_t(rows_.size()) <= rules_.most_rows;
    for (Row& row : rows_) {
      const int64_t known = int64_t(row.text.size()) - 1;
      int64_t room = row.asked.max_len - 1;
      if (drafter_) room = std::min(room, drafter_->max_positions);
      const int64_t wanted = drafter_ && (drafts || !row.is_greedy) ? row.asked.block_size : 0;
      row.budget = row.is_active ? std::max<int64_t>(std::min(wanted, room - known), 0) : 0;
    }
  }

  const std::shared_ptr<Verifying> verifier_;
  const std::shared_ptr<Drafter> drafter_;
  const Rules rules_;
  std::vector<Row> rows_;
  std::vector<Room> rooms_;  // one for each part of the rows
};

}  // namespace specdec
