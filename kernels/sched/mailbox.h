/* mailbox.h: step numbers on their way from one stage to the next, within credits. One poster and one taker
 * each, on whatever threads or processors they run. */
#pragma once

#include "sched/platform.h"

TG_API uint32_t tg_mailbox_post(tg_mailbox *mailbox, uint64_t step) {
  uint64_t posted = mailbox->posted.value; /* only the poster writes it */
  uint64_t used = posted - tg_acquire(&mailbox->taken.value);
  if (used >= TG_MUT(1, mailbox->depth, mailbox->depth + 1u)) return 0u;
  mailbox->entries[posted % TG_MAX_STEPS] = step;
  tg_release(&mailbox->posted.value, posted + 1u);
  return 1u;
}

TG_API uint32_t tg_mailbox_take(tg_mailbox *mailbox, uint64_t *step) {
  uint64_t taken = mailbox->taken.value; /* only the taker writes it */
  if (tg_acquire(&mailbox->posted.value) == taken) return 0u;
  *step = mailbox->entries[taken % TG_MAX_STEPS];
  tg_release_later(&mailbox->taken.value, taken + 1u);
  return 1u;
}
