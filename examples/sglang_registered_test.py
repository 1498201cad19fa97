"""A test for SGLang's registry: copy it to `test/registered/openai_server/`; its job installs tokenwire."""

import unittest

from sglang.srt.utils import kill_process_tree
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import (
    DEFAULT_SMALL_MODEL_NAME_FOR_TEST,
    DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
    DEFAULT_URL_FOR_TEST,
    CustomTestCase,
    popen_launch_server,
)

from tokenwire.api import check, failures

register_cuda_ci(est_time=120, suite="stage-b-test-small-1-gpu")


class TestWire(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = popen_launch_server(
            DEFAULT_SMALL_MODEL_NAME_FOR_TEST,
            DEFAULT_URL_FOR_TEST,
            timeout=DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
        )

    @classmethod
    def tearDownClass(cls):
        kill_process_tree(cls.process.pid)

    def test_wire(self):
        report = check(DEFAULT_URL_FOR_TEST, budget="quick")
        self.assertEqual(report["exit_status"], 0, "\n\n".join(failures(report)))


if __name__ == "__main__":
    unittest.main()
