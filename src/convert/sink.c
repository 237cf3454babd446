/* SPDX-License-Identifier: MulanPSL-2.0 */
/* The table of timeline exporters and what they share; see sink.h. */
#include "convert/sink.h"

const struct tsink_ops *const tsink_formats[] = { &tsink_chrome, &tsink_perfetto, NULL };

const char *tsink_quality(uint8_t quality)
{
	/* in the order of what matters most to a reader */
	if (quality & EV_CUT_END)
		return quality & EV_LOST_BEFORE ? "end not seen, records lost before" : "end not seen";
	if (quality & EV_CUT_BEGIN)
		return "begin not seen";
	if (quality & EV_LOST_BEFORE)
		return "records lost before";
	if (quality & EV_RAISED)
		return quality & EV_WORKER ? "left by an exception, in a worker" : "left by an exception";
	return quality & EV_WORKER ? "in a worker" : "";
}
