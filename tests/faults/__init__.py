"""Jobs that go wrong.

Each case of the reliability study is a row of test_faults.py, or has its tests elsewhere:

 7  a killed rank, and a resumption  checkpoint/test_protocol.py, checkpoint/test_background.py,
                                     training/test_parallel_training.py, examples/
13  SIGTERM                          checkpoint/test_preemption.py
34  two jobs on one folder           checkpoint/test_checkpointer.py, checkpoint/test_protocol.py
35  a full or closed disk            checkpoint/test_damage.py, checkpoint/test_background.py,
                                     serializers/test_npz.py, training/test_snapshots.py
36  kill -9 at every step            checkpoint/test_protocol.py, checkpoint/test_background.py
37  damaged checkpoints              checkpoint/test_damage.py
38  other numbers of ranks           checkpoint/test_layouts.py, checkpoint/test_divided_links.py
39  damaged data sets                datasets/
40  hostile files                    serializers/, checkpoint/test_damage.py, datasets/test_cifar.py
41  bad flags                        examples/, communicators/test_contract.py
"""
